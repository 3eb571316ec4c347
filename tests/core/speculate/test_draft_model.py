"""Draft models in the engine: each pass is the draft model on a text without a few tokens; what is refused."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from core import LLM, ConfigError, EngineConfig, RequestError, SamplingParams
from core.engine.build import assemble, describe
from core.engine.passes import Carry, ModelPasses, Passed
from core.engine.step_input import StepInput
from core.kv.groups import KVGroup
from core.speculate.choice import MODEL_DRAFTS, ModelChoice, parse_speculative
from core.speculate.following import Following
from core.speculate.lengths import Lengths
from tests.conftest import write_llama
from tests.core.engine.oracle import reference
from tests.core.engine.test_drafts import GREEDY, PROMPTS, check_same, serve
from tests.core.engine.test_embed_door import headless as headless_model
from tests.models.tiny import declare_pooling, write_family
from tests.plugins import BARE_PLUGIN, install_plugin
from tests.shares import quick_of

NUM_PASSES = 3
CLOSE = 2e-5  # of logits of about 1, in float32
TEXTS = [[7, 300, 2, 91, 5, 5, 64, 210, 33, 8, 120, 17, 250, 77, 9, 41, 3, *range(30, 60)], [250, 1], [9], [88, 14, 6]]
WAYS: dict[str, dict[str, Any]] = {"whole": {"pipeline_depth": 0}, "chunks": {"max_num_batched_tokens": 13}}
PAIRS = ("llama, small", "gemma3, small", "llama, gemma3")
LIMITED = (
    BARE_PLUGIN.replace("bare", "limited")
    + """
    
@hookimpl
def core_kernels(facts):
    from core.kernels.row import Implementation
    from core.kernels.table import KV_BUNDLE, TABLE
    from core.plugin import Support

    support = Support(head_sizes=frozenset(SIZES))
    rows = ("kv_layout", "kv_write", "kv_gather")
    return [Implementation(row, TABLE[row].reference, "limited", support) for row in rows]
"""
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama smaller than the others, with heads of another size."""
    sizes = {"hidden_size": 32, "head_dim": 8, "num_key_value_heads": 1, "num_hidden_layers": 2}
    return write_llama(tmp_path_factory.mktemp("draft") / "small", **sizes)


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family(tmp_path_factory.mktemp("draft") / "gemma3", "gemma3")


@pytest.fixture
def all_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also drafts that do not pay."""
    monkeypatch.setattr(Lengths, "choose", lambda self, drafts, *_: [num for _, num in drafts])
    monkeypatch.setattr(Following, "would_pay", lambda *_: True)
    monkeypatch.setattr(Following, "is_lost", lambda *_: False)


class Heard(NamedTuple):
    """Logits of a pass, and the ids that it was given up to there, `num_before` of them in steps before."""

    number: int
    num_before: int
    ids: list[int]
    logits: torch.Tensor


def listen(monkeypatch: pytest.MonkeyPatch) -> list[Heard]:
    """What passes make of one sequence at a time."""
    heard: list[Heard] = []
    given: dict[int, list[int]] = {}
    run = ModelPasses.__call__

    def listening(passes: ModelPasses, w: Any, number: int, carry: Carry, x: StepInput, plans: Any, kv: Any) -> Passed:
        passed = run(passes, w, number, carry, x, plans, kv)
        start = int(x.positions[0])
        ids = given[number] = given.get(number, [])[:start] + carry[0].tolist()
        rows = zip(x.logit_rows.tolist(), x.counter.tolist(), passed[0], strict=True)
        heard.extend(Heard(number, start, ids[: start + t + 1], logits) for t, counter, logits in rows if counter)
        return passed

    monkeypatch.setattr(ModelPasses, "__call__", listening)
    return heard


@torch.inference_mode()
@pytest.mark.parametrize(("pair", "way"), quick_of(product(PAIRS, WAYS), (PAIRS[0], "chunks"), (PAIRS[2], "whole")))
def test_each_pass_is_the_draft_model_on_the_text_without_some_tokens(
    pair: str, way: str, tiny_llama_dir: Path, small: Path, windowed: Path,
    all_tried: None, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """By transformers, to rounding, at every place that drafts follow: also where they rest on what was foretold."""
    folders = {"llama": tiny_llama_dir, "small": small, "gemma3": windowed}
    model, draft = (folders[name] for name in pair.split(", "))
    heard, oracle = listen(monkeypatch), reference(str(draft))
    few = {"dtype": "float32", "block_size": 16, "num_kv_blocks": 40, "max_model_len": 128, "fallback": "allow"}
    with LLM(str(model), device="cpu", speculative=f"model:{draft}:{NUM_PASSES}", **few, **WAYS[way]) as llm:
        for prompt in TEXTS:
            heard.clear()
            [text] = llm.generate([prompt], SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True))
            known = prompt + text.token_ids
            assert {number for number, *_ in heard} == set(range(1, NUM_PASSES + 1))
            assert len(heard) >= NUM_PASSES * len(text.token_ids) // (1 + NUM_PASSES)
            for number, start, ids, logits in heard:
                if len(prompt) > 1:
                    assert ids[: max(1, len(prompt) - number)] == [prompt[0], *prompt[number + 1 :]]
                if number == 1:
                    told = known[1:2] if len(prompt) == 1 else prompt[:1]
                    assert ids[:start] == [*told, *known[2:]][:start], "a draft that was wrong was left in the cache"
                wanted = oracle(torch.tensor([ids])).logits[0, -1]
                assert (logits - wanted).abs().max() < CLOSE * wanted.abs().max()
        assert llm.engine.inspect().num_draft_tokens > 5


@pytest.mark.parametrize("depth", quick_of([0, 1], 1))
def test_what_has_windows_changes_nothing_either(
    depth: int, small: Path, windowed: Path, tiny_llama_dir: Path, all_tried: None
) -> None:
    """In the model, in the draft model, and in both; right drafts come of the model itself."""
    for model, draft in ((windowed, small), (tiny_llama_dir, windowed), (windowed, windowed)):
        plain, _ = serve(model, GREEDY)
        drafted, seen = serve(model, GREEDY, speculative=f"model:{draft}:3", pipeline_depth=depth)
        check_same(drafted, plain)
        assert seen.num_draft_tokens > seen.num_accepted_tokens > 0 or model != draft


def test_the_model_itself_is_mostly_right(tiny_llama_dir: Path, all_tried: None) -> None:
    """Of random weights a tenth would be a marvel: it is wrong where the token matters that it never sees."""
    _, seen = serve(tiny_llama_dir, GREEDY, speculative=f"model:{tiny_llama_dir}:1")
    assert seen.num_accepted_at[0] > 0.4 * seen.num_drafts


@pytest.mark.heavy
def test_a_real_model_is_nearly_always_right_about_itself(all_tried: None) -> None:
    """And second and third drafts are not far behind, though what they rest on may be wrong."""
    prompts = ["Tell me about the history of bread.", "Write a Python function that adds two numbers, and explain it."]
    few = {"device": "cpu", "num_kv_blocks": 60, "max_model_len": 256, "dtype": "float32"}
    with LLM("smollm2", speculative="model:smollm2:3", **few) as llm:
        llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True))
        seen = llm.engine.inspect()
    first, second, third = seen.num_accepted_at
    assert first > 0.9 * seen.num_drafts
    assert second > 0.75 * first
    assert third > 0.5 * second


def test_a_prefix_is_found_again(tiny_llama_dir: Path, small: Path, all_tried: None) -> None:
    greedy, _ = serve(tiny_llama_dir, GREEDY)
    follow = [out.prompt_ids + out.token_ids + [9] for out in greedy]
    few = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    wanted, _ = serve(tiny_llama_dir, few, prompts=follow)
    options = {"dtype": "float32", "block_size": 4, "num_kv_blocks": 300, "max_model_len": 128}
    with LLM(str(tiny_llama_dir), device="cpu", speculative=f"model:{small}:3", **options) as llm:
        llm.generate(PROMPTS, GREEDY)
        drafted = llm.generate(follow, few)
    check_same(drafted, wanted)
    # The last id of each is new, and entries of drafts look three ids ahead.
    assert all(out.num_cached == (len(out.prompt_ids) - 1 - 3) // 4 * 4 for out in drafted)


def test_entries_go_to_engines_with_the_same_draft_model_alone(tiny_llama_dir: Path, small: Path) -> None:
    options = {"dtype": "float32", "device": "cpu", "num_kv_blocks": 40, "max_model_len": 128}
    prompt, few = list(range(40, 90)), SamplingParams(temperature=0.0, max_tokens=6)
    with LLM(str(tiny_llama_dir), speculative=f"model:{small}:2", **options) as llm:
        [wanted] = llm.generate([prompt], few)
        entries = llm.engine.export_kv(prompt)
    with LLM(str(tiny_llama_dir), speculative=f"model:{small}:2", **options) as llm:
        name = llm.engine.import_kv(entries)
        [found] = llm.generate([prompt], SamplingParams(temperature=0.0, max_tokens=6, kv_provenance=name))
        assert (found.token_ids, found.num_cached) == (wanted.token_ids, 48)
    with (
        LLM(str(tiny_llama_dir), speculative=f"model:{tiny_llama_dir}:2", **options) as llm,
        pytest.raises(RequestError, match="of the draft model is"),
    ):
        llm.engine.import_kv(entries)


def test_what_it_adds(tiny_llama_dir: Path, small: Path) -> None:
    """Groups of its own, with the layers of all passes; and the plan tells of weights and KV."""
    config = EngineConfig(
        model=str(tiny_llama_dir), device="cpu", dtype="float32", max_model_len=64, speculative=f"model:{small}:3"
    )
    made = assemble(config)
    assert made.groups == (KVGroup(3, 2, 16), KVGroup(6, 1, 8, lookahead=3))
    mine = {name for name in made.builder.params if name.startswith("draft:")}
    assert {name.removeprefix("draft:") for name in mine} <= made.builder.params.keys() - mine
    num = sum(source_size(made.source, name) for name in made.source.names() if name.startswith("draft:"))
    num += 64 * 8  # cosines and sines
    assert f"drafts take {4 * num / 2**20:.1f} MiB of weights, and 384 bytes of KV a token; the model's are 768" in (
        describe(config).notes
    )


def source_size(source: Any, name: str) -> int:
    return int(torch.Size(source.shape(name)).numel())


def test_what_may_be_asked_for() -> None:
    assert parse_speculative("model:smollm2") == ModelChoice("smollm2", MODEL_DRAFTS)
    assert parse_speculative("model:a:b/c.gguf:2") == ModelChoice("a:b/c.gguf", 2)
    assert parse_speculative(str(ModelChoice("a", 7))) == ModelChoice("a", 7)
    for drafts in (0, 33):
        with pytest.raises(ConfigError, match=f"asks for {drafts} drafts: it must be 1 to 32"):
            parse_speculative(f"model:smollm2:{drafts}")
    for text in ("model", "model:", "draft:smollm2"):
        with pytest.raises(ConfigError, match="or model:PATH or model:PATH:DRAFTS, with a smaller model"):
            parse_speculative(text)


def refusal(model: Path, draft: Path, **options: Any) -> str:
    few = {"device": "cpu", "max_model_len": 64, **options}
    with pytest.raises(ConfigError) as refused:
        assemble(EngineConfig(model=str(model), speculative=f"model:{draft}", **few))
    return str(refused.value)


def test_what_is_refused(tiny_llama_dir: Path, small: Path, tmp_path: Path) -> None:
    wide = write_llama(tmp_path / "wide", vocab_size=400)
    assert "has a vocabulary of 400, and" in refusal(tiny_llama_dir, wide)
    other = write_llama(tmp_path / "other")
    content = json.loads((other / "tokenizer.json").read_text())
    vocab = content["model"]["vocab"]
    one, two = (next(token for token, token_id in vocab.items() if token_id == i) for i in (300, 301))
    content["model"]["vocab"] = {**vocab, one: 301, two: 300}
    (other / "tokenizer.json").write_text(json.dumps(content))
    assert f"has {two!r} as token 300, and {tiny_llama_dir} has {one!r}: give a draft model" in refusal(
        tiny_llama_dir, other
    )
    headless = declare_pooling(headless_model(tmp_path / "headless", tied=False))
    assert "gives embeddings alone: give one that writes text" in refusal(tiny_llama_dir, headless)
    short = write_llama(tmp_path / "short", max_position_embeddings=32)
    assert "was made for 32 tokens, and max_model_len is 64: ask for --max-model-len 32" in refusal(
        tiny_llama_dir, short
    )
    assert "does not divide the model's 1 KV heads, in its draft model" in refusal(
        tiny_llama_dir, small, tensor_parallel_size=2
    )
    assert "nowhere' is not known: give a folder" in refusal(tiny_llama_dir, Path("nowhere"))


def test_head_sizes_that_kernels_refuse(
    tiny_llama_dir: Path, small: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those of the draft model count, whichever is larger: the pool is then the reference's, which the plan says."""
    limited = LIMITED.replace("SIZES", "{16}")
    install_plugin(monkeypatch, tmp_path / "limited", "limited", limited)
    few = {"device": "limited", "max_model_len": 64, "fallback": "allow"}
    for draft, provider in ((tiny_llama_dir, "limited"), (small, "reference")):
        plan = describe(EngineConfig(model=str(tiny_llama_dir), speculative=f"model:{draft}", **few))
        [found] = {(b.provider, b.reason) for b in plan.bindings if b.row == "kv_write"}
        assert found == (provider, "native" if provider == "limited" else "limited: head_size 8 is not among 16")
