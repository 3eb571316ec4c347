"""Drafts never change what comes out: the same ids, log-probabilities and ends as without, whatever is drafted."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from core import LLM, RequestOutput, SamplingParams, Structured
from core.engine.snapshot import Snapshot
from tests.core.engine.faults import LOGPROB_ATOL
from tests.core.speculate.oracle_drafter import among, oracle
from tests.models.tiny import FAMILIES, write_family
from tests.plugins import install_hostile
from tests.shares import quick_of

_RNG = random.Random(3)
PAGE = 4
TIE = 1e-5  # nats; rounding in float32 moves log-probabilities by less
PROMPTS = [_RNG.choices(range(3, 384), k=length) for length in (1, 2, 3, 4, 5, 8, 30, 31)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=80, ignore_eos=True)
SHARED: dict[str, Any] = {"max_tokens": 40, "temperature": 1.0}
MIXED = [
    SamplingParams(temperature=0.0, max_tokens=24, logprobs=2, stop_token_ids=(7, 11, 19, 23, 40, 41, 42, 43, 44)),
    SamplingParams(seed=1, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2, **SHARED),
    SamplingParams(seed=2, top_p=0.9, top_k=50, min_p=0.01, logprobs=0, logprob_token_ids=(5, 6), **SHARED),
    SamplingParams(seed=3, structured=Structured("regex", "[a-f ]{18,30}"), **SHARED),
    SamplingParams(seed=4, bad_words=("a", "ab", "e"), min_tokens=9, allowed_token_ids=tuple(range(80, 140)), **SHARED),
    SamplingParams(temperature=0.0, max_tokens=24, prompt_logprobs=1, logit_bias={90: 2.0, 91: 1.5}),
    SamplingParams(seed=5, stop=("a", "x", "q"), **SHARED),
    SamplingParams(seed=6, n=1, frequency_penalty=1.0, **SHARED),
]  # fmt: skip


def serve(
    model: Path, params: SamplingParams | list[SamplingParams], answers: list[list[int]] | None = None, *,
    prompts: list[list[int]] = PROMPTS, max_drafts: int = 8, fewer: float = 0.5, **options: Any,
) -> tuple[list[RequestOutput], Snapshot]:  # fmt: skip
    """All prompts at once; `answers`: without drafts, of which the oracle drafts."""
    settings = {"dtype": "float32", "fallback": "allow", "block_size": PAGE, "num_kv_blocks": 300, "max_model_len": 128}
    if answers is not None:
        settings["speculative"] = f"ngram:{max_drafts}"
    with LLM(str(model), **{**settings, **options}) as llm:
        if answers is not None:
            texts = [prompt + ids for prompt, ids in zip(prompts, answers, strict=True)]
            llm.engine.scheduler.drafting = oracle(among(texts), max_drafts, fewer=fewer)
        outputs = llm.generate(prompts, params)
        llm.engine.scheduler.check_idle()
        return outputs, llm.engine.inspect()


def check_same_but_ties(drafted: list[RequestOutput], plain: list[RequestOutput]) -> None:
    """Steps of several tokens round otherwise: where the best two are as likely, either may be drawn."""
    parted = [(mine, other) for mine, other in zip(drafted, plain, strict=True) if mine.token_ids != other.token_ids]
    assert len(parted) <= len(plain) // 100
    for mine, other in parted:
        at = next(i for i, ids in enumerate(zip(mine.token_ids, other.token_ids, strict=True)) if len(set(ids)) > 1)
        first, second = other.logprobs[at].top_logprobs
        assert first - second < TIE


def check_same(drafted: list[RequestOutput], plain: list[RequestOutput]) -> None:
    for mine, other in zip(drafted, plain, strict=True):
        assert (mine.token_ids, mine.text) == (other.token_ids, other.text)
        assert (mine.finish_reason, mine.stop_reason) == (other.finish_reason, other.stop_reason)
        for these, those in ((mine.logprobs, other.logprobs), (mine.prompt_logprobs, other.prompt_logprobs)):
            assert [a.logprob for a in these] == pytest.approx([b.logprob for b in those], abs=LOGPROB_ATOL)
            assert [a.top_ids for a in these] == [b.top_ids for b in those]


def ids_of(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.token_ids for output in outputs]


@pytest.fixture(scope="module")
def greedy(tiny_llama_dir: Path) -> list[RequestOutput]:
    return serve(tiny_llama_dir, GREEDY)[0]


@pytest.fixture(scope="module")
def mixed(tiny_llama_dir: Path) -> list[RequestOutput]:
    outputs = serve(tiny_llama_dir, MIXED)[0]
    assert {output.finish_reason for output in outputs} == {"stop", "length"}
    return outputs


@pytest.mark.parametrize(("depth", "max_drafts"), quick_of([(0, 8), (1, 8), (0, 1), (1, 3)], (0, 8), (1, 3)))
def test_greedy(tiny_llama_dir, greedy, depth, max_drafts):
    """Also where drafts cross pages; every number of right drafts comes up."""
    drafted, seen = serve(tiny_llama_dir, GREEDY, ids_of(greedy), pipeline_depth=depth, max_drafts=max_drafts)
    check_same(drafted, greedy)
    reached = [*seen.num_accepted_at, 0]
    exactly = [more - fewer for more, fewer in zip([seen.num_drafts, *reached], reached, strict=False)]
    assert len(exactly) == max_drafts + 1
    assert all(exactly), exactly
    assert seen.num_draft_tokens > seen.num_accepted_tokens == sum(reached)


CASES: dict[str, dict[str, Any]] = {
    "depth 0": {"pipeline_depth": 0},
    "depth 1": {"pipeline_depth": 1},
    "chunks": {"max_num_batched_tokens": 11, "pipeline_depth": 1},
    "preempted": {"num_kv_blocks": 36},
    "swapped": {"num_kv_blocks": 36, "swap_space": 0.01, "pipeline_depth": 1},
    "few rows": {"max_num_seqs": 2},
}


@pytest.mark.parametrize("case", quick_of(CASES, "depth 0", "chunks", "swapped"))
def test_whatever_is_asked(tiny_llama_dir, mixed, case):
    """Seeds, penalties, masks, grammars, ends and reports, however steps are made up."""
    drafted, seen = serve(tiny_llama_dir, MIXED, ids_of(mixed), **CASES[case])
    check_same(drafted, mixed)
    assert seen.num_accepted_tokens > 20
    assert (seen.num_preemptions > 0) == ("num_kv_blocks" in CASES[case])
    assert (seen.num_swapped > 0) == ("swap_space" in CASES[case])


def test_where_rounding_is_coarse_batch_invariance_keeps_ids(tiny_llama_dir):
    """In bfloat16, with the device's own kernels: not only the ids are the same, but every bit of what is reported."""
    few = {"dtype": "bfloat16", "batch_invariant": True}
    params = msgspec.structs.replace(GREEDY, logprobs=1)
    plain, _ = serve(tiny_llama_dir, params, **few)
    drafted, seen = serve(tiny_llama_dir, params, ids_of(plain), **few)
    assert [(out.token_ids, out.logprobs) for out in drafted] == [(out.token_ids, out.logprobs) for out in plain]
    assert seen.num_accepted_tokens > 20


def test_a_prefix_of_drafts_is_found_again(tiny_llama_dir, greedy):
    """Pages with entries of right drafts are what they would be without."""
    follow = [out.prompt_ids + out.token_ids + [9] for out in greedy]
    few = msgspec.structs.replace(GREEDY, max_tokens=12)
    wanted = serve(tiny_llama_dir, few, prompts=follow)[0]
    with LLM(
        str(tiny_llama_dir), dtype="float32", block_size=PAGE, num_kv_blocks=300, max_model_len=128, speculative="ngram"
    ) as llm:
        llm.engine.scheduler.drafting = oracle(among([out.prompt_ids + out.token_ids for out in greedy + wanted]), 8)
        llm.generate(PROMPTS, GREEDY)
        drafted = llm.generate(follow, few)
    check_same(drafted, wanted)
    assert all(out.num_cached == (len(out.prompt_ids) - 2) // PAGE * PAGE for out in drafted)


def test_the_ngram_drafter_saves_steps_where_texts_repeat(tiny_llama_dir):
    """The real drafter, whatever steps cost: the ids are the same, and each right draft saves a step."""
    prompts = [[9, *_RNG.choices(range(3, 384), k=12)] * 3]
    plain, slow = serve(tiny_llama_dir, GREEDY, prompts=prompts)
    options = {"dtype": "float32", "block_size": PAGE, "num_kv_blocks": 300, "max_model_len": 128}
    with LLM(str(tiny_llama_dir), speculative="ngram:6:1-3", **options) as llm:
        llm.engine.scheduler.drafting.lengths = None
        drafted = llm.generate(prompts, GREEDY)
        fast = llm.engine.inspect()
    check_same(drafted, plain)
    assert slow.num_accepted_at == []
    assert len(fast.num_accepted_at) == 6
    assert fast.num_accepted_tokens > 5
    assert fast.num_steps == slow.num_steps - fast.num_accepted_tokens


@pytest.mark.parametrize("depth", [0, pytest.param(1, marks=pytest.mark.heavy)])
def test_a_device_that_compiles(tiny_llama_dir, monkeypatch, tmp_path, depth):
    """Rows of logits beside those of sequences are among the shapes that were compiled at the start."""
    install_hostile(monkeypatch, tmp_path / "hostile")
    few = {"prompts": PROMPTS[5:7], "device": "hostile", "block_size": None, "num_kv_blocks": 40}
    few |= {"pipeline_depth": depth}
    params = [MIXED[1], GREEDY]
    plain, _ = serve(tiny_llama_dir, params, **few)
    drafted, seen = serve(tiny_llama_dir, params, ids_of(plain), **few)
    check_same(drafted, plain)
    assert seen.num_accepted_tokens > 20
    assert seen.num_late_compiles == 0


@pytest.mark.heavy
def test_two_ranks(tiny_llama_dir, mixed):
    drafted, seen = serve(tiny_llama_dir, MIXED, ids_of(mixed), tensor_parallel_size=2, pipeline_depth=1)
    check_same(drafted, mixed)
    assert seen.num_accepted_tokens > 20


@pytest.mark.parametrize("family", ["gemma3", *(pytest.param(f, marks=pytest.mark.heavy) for f in FAMILIES)])
def test_families(tmp_path, request, family):
    """Windows, too: 500 prompts of each family where time does not matter."""
    model = write_family(tmp_path / family, family)
    heavy = request.node.get_closest_marker("heavy") is not None
    rng = random.Random(family)
    prompts = [rng.choices(range(3, 384), k=rng.randrange(1, 50)) for _ in range(500 if heavy else 12)]
    params = msgspec.structs.replace(GREEDY, max_tokens=26 if heavy else 40, logprobs=2)
    few = {"max_num_seqs": 16}
    plain, _ = serve(model, params, prompts=prompts, **few)
    for max_drafts in (3, 8) if heavy else (8,):
        drafted, seen = serve(model, params, ids_of(plain), prompts=prompts, max_drafts=max_drafts, fewer=0.0, **few)
        check_same_but_ties(drafted, plain)
        assert seen.num_accepted_at[-1] > (100 if heavy else 0)
