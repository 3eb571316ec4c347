"""Preempted sequences go to the host and come back: the same texts on all kinds of devices, nothing lost by a fault."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from core import LLM, ConfigError, EngineConfig, RequestOutput, SamplingParams, Structured
from core.engine.build import describe
from core.engine.snapshot import Snapshot
from core.plugin import Event
from tests.core.engine.faults import LOGPROB_ATOL
from tests.models.tiny import write_family
from tests.plugins import BARE_PLUGIN, install_plugin

DEVICES = Path(__file__).parents[2] / "devices"
HOSTILE = (DEVICES / "hostile" / "hostile_device.py").read_text()
SWAP_GIB = 0.01
_RNG = random.Random(1)
PROMPTS = [_RNG.choices(range(3, 384), k=6 + 4 * i) for i in range(5)]
PROMPTS += [PROMPTS[3] + [7, 8, 9]]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=34),
    SamplingParams(temperature=0.8, seed=2, max_tokens=30, repetition_penalty=1.2),
    SamplingParams(temperature=0, max_tokens=24, logprobs=2, ignore_eos=True),
    SamplingParams(temperature=1, seed=4, max_tokens=24, structured=Structured("regex", "[a-f ]{18,20}")),
    SamplingParams(temperature=0, max_tokens=24, prompt_logprobs=1),
    SamplingParams(temperature=0.5, seed=6, max_tokens=24, presence_penalty=0.5),
]
LONGER = _RNG.choices(range(3, 384), k=36)
FEW = {"block_size": 4, "max_model_len": 96, "num_kv_blocks": 25}


def in_place(source: str) -> str:
    """The impolite device, but with KV pages where others can copy them: as a device that captures graphs has them."""
    for old, new in (
        ("    def keep(self, value):\n        return mapped(value, torch.Tensor, Kept)\n\n", ""),
        ("return mapped(results, torch.Tensor, Kept)", "return results"),
    ):
        assert source.count(old) == 1
        source = source.replace(old, new)
    return source


INSTALL = {
    "cpu": "",
    "bare": BARE_PLUGIN,
    "hostile": in_place(HOSTILE),
    "late": (DEVICES / "late" / "late_device.py").read_text(),
}


@pytest.fixture
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    if INSTALL[request.param]:
        install_plugin(monkeypatch, tmp_path / "plugin", request.param, INSTALL[request.param])
    return str(request.param)


def run(model: Path, prompts: list[list[int]] = PROMPTS, **options: Any) -> tuple[list[RequestOutput], Snapshot]:
    """All prompts at once, after which nothing may be missing."""
    settings = {"dtype": "float32", "fallback": "allow", "max_num_seqs": 4, "max_num_batched_tokens": 40}
    with LLM(str(model), **{**settings, **options}) as llm:
        outputs = llm.generate(prompts, PARAMS)
        llm.engine.scheduler.check_idle()
        return outputs, llm.engine.inspect()


def check_same(swapped: list[RequestOutput], plain: list[RequestOutput], atol: float = LOGPROB_ATOL) -> None:
    for mine, other in zip(swapped, plain, strict=True):
        assert mine.token_ids == other.token_ids
        for these, those in ((mine.logprobs, other.logprobs), (mine.prompt_logprobs, other.prompt_logprobs)):
            assert [a.logprob for a in these] == pytest.approx([b.logprob for b in those], abs=atol)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(
    "device",
    ["cpu", "late", *(pytest.param(name, marks=pytest.mark.heavy) for name in ("bare", "hostile"))],
    indirect=True,
)
def test_texts_are_those_without_preemption(tiny_llama_dir: Path, device: str, depth: int) -> None:
    few, prompts = FEW, PROMPTS
    if device == "hostile":
        few = {"block_size": 64, "max_model_len": 128, "num_kv_blocks": 3}
        prompts = [LONGER + prompt for prompt in PROMPTS]
    given = {"device": device, "pipeline_depth": depth}
    plain, roomy = run(tiny_llama_dir, prompts, **given, **{**few, "num_kv_blocks": 128})
    assert not roomy.num_preemptions
    swapped, seen = run(tiny_llama_dir, prompts, swap_space=SWAP_GIB, **given, **few)
    # Sums in another order may change a code of INT8.
    check_same(swapped, plain, 0.01 if device == "hostile" else LOGPROB_ATOL)
    assert 1 < seen.num_swapped <= seen.num_preemptions  # some draw their last token in the step in flight
    assert seen.num_swaps_refused == 0
    assert 0 < seen.num_pages_swapped_in <= seen.num_pages_swapped_out
    assert seen.groups[0].num_host_used == 0


@pytest.mark.parametrize("depth", [pytest.param(0, marks=pytest.mark.heavy), 1])
def test_nothing_swapped_is_computed_again(tiny_llama_dir: Path, depth: int) -> None:
    """Without a prefix cache every token but the last drawn is computed once."""
    few = {**FEW, "device": "cpu", "pipeline_depth": depth}
    outputs, seen = run(tiny_llama_dir, swap_space=SWAP_GIB, enable_prefix_caching=False, **few)
    assert seen.num_swapped > 1
    needed = sum(len(prompt) + len(output.token_ids) - 1 for prompt, output in zip(PROMPTS, outputs, strict=True))
    overrun = len(PROMPTS) if depth else 0  # a stop is seen one step late
    assert needed <= seen.num_step_tokens <= needed + overrun
    again = run(tiny_llama_dir, enable_prefix_caching=False, **few)[1]
    assert again.num_swapped == 0
    assert again.num_step_tokens > needed + overrun


@pytest.mark.parametrize(
    "swap_space", [pytest.param(SWAP_GIB, marks=pytest.mark.heavy), 0.00002], ids=["room", "little room"]
)
def test_a_window_beside_a_full_group(tmp_path: Path, swap_space: float) -> None:
    model = write_family(tmp_path / "gemma3", "gemma3", sliding_window=16)
    few = {**FEW, "device": "cpu", "pipeline_depth": 1}
    plain, _ = run(model, **{**few, "num_kv_blocks": 200})
    swapped, seen = run(model, swap_space=swap_space, **few)
    check_same(swapped, plain)
    assert len(seen.groups) == 2
    assert seen.num_swapped > 0
    assert (seen.num_swaps_refused > 0) == (swap_space < SWAP_GIB)
    assert seen.num_swapped + seen.num_swaps_refused <= seen.num_preemptions


@pytest.mark.heavy
@pytest.mark.parametrize("device", ["cpu", "late"], indirect=True)
@pytest.mark.parametrize("depth", [0, 1])
def test_two_ranks(tiny_llama_dir: Path, device: str, depth: int) -> None:
    """Each has transfers of its own; the other one waits for those that rank 0 has seen end."""
    few = {**FEW, "device": device, "pipeline_depth": depth}
    plain, _ = run(tiny_llama_dir, **{**few, "num_kv_blocks": 200})
    swapped, seen = run(tiny_llama_dir, swap_space=SWAP_GIB, tensor_parallel_size=2, **few)
    check_same(swapped, plain)
    assert seen.num_swapped > 1


def test_the_plan_says_how_many_pages_there_are(tiny_llama_dir: Path) -> None:
    config = EngineConfig(model=str(tiny_llama_dir), device="cpu", dtype="float32", block_size=64, max_num_seqs=9)
    made = describe(structs.replace(config, swap_space=0.001))
    page_bytes = 3 * 2 * 64 * 2 * 16 * 4
    assert ("num_swap_blocks", str(int(0.001 * 2**30) // page_bytes), "0.001 GiB") in made.rows()
    assert "kv_swap" in {binding.row for binding in made.bindings}
    plain = describe(config)
    assert ("num_swap_blocks", "0", "default") in plain.rows()
    assert "kv_swap" not in {binding.row for binding in plain.bindings}


def test_an_event_that_cannot_say_is_waited_for() -> None:
    """Plugins that were written before `done` was asked for have events without it."""

    class Old(Event):
        waited = False

        def synchronize(self) -> None:
            self.waited = True

    old = Old()
    assert old.done()
    assert old.waited


def test_a_device_that_keeps_pages_to_itself(tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    install_plugin(monkeypatch, tmp_path / "plugin", "hostile", HOSTILE)
    with pytest.raises(ConfigError, match="swap_space is 1 GiB: device hostile keeps KV pages in a form of its own"):
        LLM(str(tiny_llama_dir), device="hostile", swap_space=1, fallback="allow")
