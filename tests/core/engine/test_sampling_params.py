"""Every sampling parameter takes effect, on every in-tree device and the impolite one, at both depths."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from core import LLM, RequestError, SamplingParams
from core.engine.llm import RequestOutput
from tests.core.engine.oracle import reference
from tests.plugins import BARE_PLUGIN, install_hostile, install_plugin

PROMPT = [5, 90, 91, 92, 93, 94]
NUM = 24
Generate = Callable[..., RequestOutput]


@pytest.fixture(scope="module", params=["cpu", "null", "bare", "hostile"])
def device(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("plugins")
        if request.param == "bare":
            install_plugin(patch, folder / "bare", "bare", BARE_PLUGIN)
        if request.param == "hostile":
            install_hostile(patch, folder / "hostile")
        yield str(request.param)


@pytest.fixture(scope="module", params=[pytest.param(0, marks=pytest.mark.heavy), 1], ids=["depth0", "depth1"])
def llm(request: pytest.FixtureRequest, device: str, tiny_llama_dir: Path) -> Iterator[LLM]:
    options = {"device": device, "fallback": "allow", "dtype": "float32", "pipeline_depth": request.param}
    with LLM(str(tiny_llama_dir), num_kv_blocks=80, max_model_len=256, **options) as opened:
        yield opened


@pytest.fixture
def generate(llm: LLM) -> Generate:
    def run(prompt: list[int] = PROMPT, **params) -> RequestOutput:
        settings = {"temperature": 0.0, "max_tokens": NUM, "ignore_eos": True, **params}
        return llm.generate(prompt, SamplingParams(**settings))[0]

    return run


def test_logit_bias_forces_and_forbids(generate):
    plain = generate().token_ids
    assert generate(logit_bias={7: 100.0}).token_ids == [7] * NUM
    without = generate(logit_bias={plain[0]: -100.0}).token_ids
    assert plain[0] not in without


def test_allowed_token_ids_are_all_there_is(generate):
    ids = generate(allowed_token_ids=(3, 40, 383)).token_ids
    assert set(ids) <= {3, 40, 383}
    drawn = generate(allowed_token_ids=(3, 40, 383), temperature=5.0, seed=1, max_tokens=60).token_ids
    assert set(drawn) == {3, 40, 383}


def test_bad_words_are_never_completed(generate, llm):
    (x,), (y,) = (llm.tokenizer.encode(letter, add_special_tokens=False) for letter in "XY")

    def draw(**params) -> list[int]:
        return generate(allowed_token_ids=(x, y), temperature=5.0, seed=2, max_tokens=60, **params).token_ids

    def pairs(ids: list[int]) -> set[tuple[int, int]]:
        return set(itertools.pairwise(ids))

    assert pairs(draw()) == {(x, x), (x, y), (y, x), (y, y)}
    assert (x, y) not in pairs(draw(bad_words=("XY",)))
    assert set(draw(bad_words=("X",))) == {y}


def test_repetition_penalty_tells_seen_tokens_apart(generate):
    """With both logits far above 0, a token that was there loses to one that was not."""
    bias = {"logit_bias": {7: 30.0, 50: 20.0}, "allowed_token_ids": (7, 50)}
    assert generate(**bias).token_ids == [7] * NUM
    assert generate(**bias, repetition_penalty=50.0).token_ids[:2] == [7, 50]


def test_frequency_penalty_grows_with_each_output(generate):
    bias = {"logit_bias": {7: 30.0, 50: 20.0}, "allowed_token_ids": (7, 50)}
    ids = generate(**bias, frequency_penalty=2.0).token_ids
    assert ids[0] == 7
    assert ids.count(50) >= NUM // 4


def test_presence_penalty_spreads_the_output(generate):
    allowed = {"allowed_token_ids": tuple(range(10, 60, 3))}
    assert len(set(generate(**allowed, presence_penalty=2.0).token_ids)) > len(set(generate(**allowed).token_ids))


def test_min_p_leaves_out_the_unlikely(generate):
    best = generate().token_ids
    assert generate(temperature=2.0, seed=3, min_p=1.0).token_ids == best
    assert generate(temperature=2.0, seed=3, min_p=0.0).token_ids != best


def test_min_tokens_puts_off_the_end(generate):
    plain = generate().token_ids
    stop = plain[3]
    first = plain.index(stop)
    assert len(generate(stop_token_ids=(stop,)).token_ids) == first + 1
    later = generate(stop_token_ids=(stop,), min_tokens=10)
    assert stop not in later.token_ids[:10]


def test_logprobs_of_tokens_by_id(generate):
    """Behind the likeliest, and equal to what a report of more tokens says of them."""
    asked = {"temperature": 1.0, "seed": 5}
    wide = generate(logprobs=20, **asked).logprobs[0]
    ids = (wide.top_ids[7], wide.top_ids[1], wide.top_ids[19])
    named = generate(logprobs=2, logprob_token_ids=ids, **asked).logprobs[0]
    assert named.top_ids == [*wide.top_ids[:2], ids[0], ids[2]]
    assert named.top_logprobs == [*wide.top_logprobs[:2], wide.top_logprobs[7], wide.top_logprobs[19]]


def test_logprobs_of_drawn_tokens(generate, llm, device, tiny_llama_dir):
    out = generate(logprobs=3, temperature=1.0, seed=5)
    assert len(out.logprobs) == NUM
    for token_id, report in zip(out.token_ids, out.logprobs, strict=True):
        assert len(report.top_ids) == len(report.top_logprobs) == 3
        assert report.top_logprobs == sorted(report.top_logprobs, reverse=True)
        assert report.rank >= 1
        if report.logprob > report.top_logprobs[-1]:
            assert report.top_ids[report.rank - 1] == token_id
            assert report.top_logprobs[report.rank - 1] == report.logprob
    check_logprobs(device, tiny_llama_dir, out)
    assert generate(logprobs=0).logprobs[0].top_ids == []
    assert generate().logprobs == []


def test_prompt_logprobs_are_computed_even_where_the_prompt_is_cached(generate, device, tiny_llama_dir):
    prompt = [(i * 7) % 380 + 3 for i in range(150)]
    first = generate(prompt)
    out = generate(prompt, prompt_logprobs=2, logprobs=1)
    assert out.num_cached == 0
    assert len(out.prompt_logprobs) == len(prompt) - 1
    check_logprobs(device, tiny_llama_dir, out)
    assert len(generate(prompt, prompt_logprobs=2, max_tokens=1).prompt_logprobs) == len(prompt) - 1
    after = generate(prompt)
    assert after.num_cached >= 64
    assert after.token_ids == first.token_ids == out.token_ids


@torch.inference_mode()
def check_logprobs(device: str, model: Path, out: RequestOutput) -> None:
    if device == "null":
        assert all(report.logprob <= 0 for report in out.logprobs)
        return
    logits = reference(str(model))(torch.tensor([out.prompt_ids + out.token_ids])).logits[0]
    wanted = torch.log_softmax(logits.float(), -1)
    bound = 0.2 if device == "hostile" else 1e-3
    ids = out.prompt_ids + out.token_ids
    reports = out.prompt_logprobs + out.logprobs
    start = len(ids) - len(reports)
    for position, report in enumerate(reports, start):
        assert math.isclose(report.logprob, wanted[position - 1, ids[position]].item(), abs_tol=bound)


def test_n_outputs_draw_independently(llm):
    outs = llm.generate(PROMPT, SamplingParams(temperature=1.5, n=4, seed=9, max_tokens=NUM, ignore_eos=True))
    assert [out.index for out in outs] == [0, 1, 2, 3]
    assert len({tuple(out.token_ids) for out in outs}) == 4
    again = llm.generate(PROMPT, SamplingParams(temperature=1.5, n=4, seed=9, max_tokens=NUM, ignore_eos=True))
    assert [out.token_ids for out in again] == [out.token_ids for out in outs]


def test_requests_with_and_without_wishes_share_a_step(llm):
    plain = SamplingParams(temperature=0.0, max_tokens=NUM, ignore_eos=True)
    alone = llm.generate(PROMPT, plain)[0].token_ids
    wishes = [
        SamplingParams(temperature=0.0, max_tokens=NUM, logit_bias={7: 100.0}),
        plain,
        SamplingParams(temperature=1.0, max_tokens=NUM, frequency_penalty=1.0, logprobs=2, seed=1),
        SamplingParams(temperature=0.0, max_tokens=NUM, prompt_logprobs=1, allowed_token_ids=(9,)),
    ]
    outs = llm.generate([PROMPT] * 4, wishes)
    assert outs[0].token_ids == [7] * NUM
    assert outs[1].token_ids == alone
    assert outs[3].token_ids == [9] * NUM
    assert [len(out.logprobs) for out in outs] == [0, 0, len(outs[2].token_ids), 0]


@pytest.mark.parametrize(
    ("param", "value", "limit"),
    [
        ("n", 0, "between 1 and 128"),
        ("min_p", 1.5, "between 0 and 1"),
        ("repetition_penalty", 0.0, "between 0.01 and 100"),
        ("repetition_penalty", 1e-40, "between 0.01 and 100"),
        ("frequency_penalty", 2.5, "between -2 and 2"),
        ("presence_penalty", -3.0, "between -2 and 2"),
        ("logit_bias", {384: 1.0}, "between 0 and 383"),
        ("logit_bias", {1: 101.0}, "between -100 and 100"),
        ("allowed_token_ids", (-1,), "between 0 and 383"),
        ("bad_words", ("",), "not empty"),
        ("min_tokens", 30, "at most max_tokens, 24"),
        ("logprobs", 21, "between 0 and 20"),
        ("prompt_logprobs", -1, "between 0 and 20"),
    ],
)
def test_out_of_range_is_refused_with_its_limit(generate, param, value, limit):
    with pytest.raises(RequestError, match=limit) as caught:
        generate(**{param: value})
    assert caught.value.param == param
