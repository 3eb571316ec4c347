"""Steps that the CPU replays give the same, bit for bit, as steps that run kernel by kernel."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from core.config import EngineConfig
from core.engine.engine import Engine
from core.engine.front import Front
from core.engine.scheduler import Scheduler
from core.engine.step import StepOutput
from core.plan import Plan
from core.request import Logprobs, SamplingParams, SequenceOutput, Structured
from devices.cpu.device import CpuDevice
from devices.cpu.native.library import find_native
from tests.core.speculate.random_heads import write_heads
from tests.models.tiny import FAMILIES, write_family

pytestmark = pytest.mark.skipif(find_native().variant is None, reason="without native kernels nothing is replayed")

PARAMS: list[dict[str, Any]] = [
    {"max_tokens": 40},
    {"max_tokens": 50, "temperature": 0.8, "top_k": 20},
    {"max_tokens": 45, "logprobs": 3},
    {"max_tokens": 30, "prompt_logprobs": 2},
    {"max_tokens": 40, "repetition_penalty": 1.3, "presence_penalty": 0.5},
    {"max_tokens": 24, "structured": Structured("regex", "[a-f]{20,24}")},
    {"max_tokens": 35, "logit_bias": {9: 2.0, 40: -50.0}, "top_p": 0.9, "temperature": 0.7},
    {"max_tokens": 60},
    {"max_tokens": 20, "temperature": 1.0, "min_p": 0.05},
]
_RNG = random.Random(7)
_PREFIX = [_RNG.randrange(3, 384) for _ in range(40)]
PROMPTS = [_PREFIX[: 16 * (i % 3)] + [_RNG.randrange(3, 384) for _ in range(1 + 5 * i)] for i in range(len(PARAMS))]


@dataclass
class Served:
    """What an engine gave, by request, and how."""

    ids: dict[str, list[int]]
    logprobs: dict[str, list[Logprobs]]
    plan: Plan
    num_replayed: int
    num_preemptions: int
    num_cached: int


def serve(model: Path, turns: int = 2, **options: Any) -> Served:
    """All requests, a few at a time, twice: then with prefixes that were computed before."""
    settings = {
        "device": "cpu", "dtype": "bfloat16", "max_num_seqs": 4, "num_kv_blocks": 12, "max_model_len": 160,
        "max_num_batched_tokens": 50,
    }  # fmt: skip
    engine = Engine(EngineConfig(model=str(model), **{**settings, **options}))
    front = Front(engine.info(), [])
    served = Served({}, {}, engine.plan, 0, 0, 0)
    for turn in range(turns):
        for i, (params, prompt) in enumerate(zip(PARAMS, PROMPTS, strict=True)):
            sampling = SamplingParams(**{"temperature": 0.0, "seed": i, "ignore_eos": True, **params})
            request = front.request(prompt, sampling, request_id=f"{turn}-{i}")
            served.ids[request.request_id], served.logprobs[request.request_id] = [], []
            engine.add(request)
        engine._grammars.wait(60)
        while engine.busy:
            for output in engine.step():
                assert output.error is None, output.error
                served.ids[output.request_id] += output.new_ids
                served.logprobs[output.request_id] += output.logprobs + output.prompt_logprobs
                served.num_cached += output.num_cached
    engine.scheduler.check_idle()
    served.num_replayed = engine.executor.runner.num_replayed
    served.num_preemptions = engine.scheduler.num_preemptions
    engine.close()
    return served


def same(model: Path, least: int = 100, **options: Any) -> Served:
    """Checks that it makes no difference; returns what was replayed."""
    replayed, plain = serve(model, **options), serve(model, enforce_eager=True, **options)
    assert replayed.ids == plain.ids
    assert replayed.logprobs == plain.logprobs
    assert plain.num_replayed == 0
    assert (plain.plan.replayed_tokens, plain.plan.decided_by["replayed_tokens"]) == (0, "asked for (enforce_eager)")
    assert replayed.num_replayed >= least
    assert replayed.num_preemptions == plain.num_preemptions
    return replayed


@pytest.mark.parametrize("depth", [0, 1])
def test_a_mixed_workload(depth: int, tiny_llama_dir: Path) -> None:
    served = same(tiny_llama_dir, pipeline_depth=depth)
    assert served.num_preemptions > 0
    assert served.num_cached > 0
    assert served.plan.replayed_tokens == 4
    assert any("tokens that all draw are replayed" in note for note in served.plan.notes)


def test_steps_that_record_are_told(tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is slower in which its shape comes up first; the same again, of other lengths, is not."""
    outputs: list[StepOutput] = []
    update = Scheduler.update

    def watched(self: Scheduler, output: StepOutput) -> list[SequenceOutput]:
        outputs.append(output)
        return update(self, output)

    monkeypatch.setattr(Scheduler, "update", watched)
    engine = Engine(EngineConfig(model=str(tiny_llama_dir), device="cpu", dtype="bfloat16", num_kv_blocks=40))
    front = Front(engine.info(), [])
    for number in range(2):
        params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
        engine.add(front.request([5, 6, 7 + number], params, request_id=str(number)))
        engine.add(front.request([9 + number] * 8, params, request_id=f"beside {number}"))
        while engine.busy:
            engine.step()
    engine.close()
    assert [output.compiled for output in outputs] == [False, True, *[False] * 6]


def test_preempted_sequences_that_are_swapped(tiny_llama_dir: Path) -> None:
    assert same(tiny_llama_dir, swap_space=0.1).num_preemptions > 0


def test_batch_invariant(tiny_llama_dir: Path) -> None:
    same(tiny_llama_dir, batch_invariant=True, num_kv_blocks=100)


@pytest.mark.parametrize("drafter", ["ngram", "mtp", "model"])
def test_drafts(drafter: str, tmp_path: Path, tiny_llama_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    """All parts of a step with drafts are replayed, and what foretells reads hidden states of a replayed forward."""
    path = write_heads(tmp_path / "heads", tiny_llama_dir, 2) if drafter == "mtp" else tiny_llama_dir
    speculative = "ngram" if drafter == "ngram" else f"{drafter}:{path}:2"
    with caplog.at_level(logging.WARNING):
        same(tiny_llama_dir, least=150, speculative=speculative, num_kv_blocks=40)
    assert "not replayed" not in caplog.text


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "gemma3"])
def test_families(family: str, tmp_path: Path) -> None:
    same(write_family(tmp_path / family, family, head_dim=32), turns=1, num_kv_blocks=40)


def test_what_a_device_cannot_replay_runs_and_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Torch scales embeddings and squashes logits for some families, and computes everything in float32."""
    cases: list[tuple[str, dict[str, Any]]] = [("gemma3", {}), ("qwen2", {"dtype": "float32"})]
    for name, options in cases:
        model = write_family(tmp_path / name, name)
        with caplog.at_level(logging.WARNING):
            served = serve(model, turns=1, num_kv_blocks=40, **options)
        assert served.ids == serve(model, turns=1, num_kv_blocks=40, enforce_eager=True, **options).ids
        assert served.num_replayed == 0
        note = next(note for note in served.plan.notes if "not replayed" in note)
        assert "torch computes" in note
        assert "are not replayed" in caplog.text


def test_watched_kernels_are_not_replayed(tiny_llama_dir: Path, tmp_path: Path) -> None:
    served = serve(tiny_llama_dir, turns=1, num_kv_blocks=40, profile=str(tmp_path / "trace.json"))
    assert served.num_replayed == 0
    assert served.plan.decided_by["replayed_tokens"] == "kernels are watched, one by one"


def test_memory_does_not_grow_with_steps(tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 8 sequences of ever longer texts, in all batch sizes: one recording for each width of block tables."""
    made: list[tuple[Any, ...]] = []
    compile_ = CpuDevice.compile

    def counted(self: CpuDevice, function: Any, key: tuple[Any, ...], given: Any) -> Any:
        made.append(key)
        return compile_(self, function, key, given)

    monkeypatch.setattr(CpuDevice, "compile", counted)
    engine = Engine(
        EngineConfig(model=str(tiny_llama_dir), device="cpu", dtype="bfloat16", num_kv_blocks=400, max_num_seqs=8)
    )
    front = Front(engine.info(), [])
    for turn in range(2):
        for i in range(8):
            params = SamplingParams(temperature=0.0, max_tokens=20 + 45 * i, ignore_eos=True)
            engine.add(front.request([5 + turn, 7 + i], params, request_id=f"{turn}-{i}"))
        while engine.busy:
            engine.step()
        if not turn:
            first = list(made)
    engine.close()
    assert sorted(first) == sorted(set(first)), "recorded once"
    assert made == first
    assert {key[1] for key in made} == set(range(1, 9))
    assert {key[2] for key in made} == {16, 32}


def test_a_replay_without_memory_fails_the_step(tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no other: the next ones are as always."""
    engine = Engine(EngineConfig(model=str(tiny_llama_dir), device="cpu", dtype="bfloat16", num_kv_blocks=40))
    front = Front(engine.info(), [])
    found: list[list[int]] = []
    for fails in (False, True, False):
        params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
        engine.add(front.request([5, 6, 7], params, request_id=str(len(found))))
        ids: list[int] = []
        errors: list[str | None] = []
        with monkeypatch.context() as patch:
            if fails:
                patch.setattr("devices.cpu.native.library.replay", lambda calls: len(calls) - 1)
            while engine.busy:
                for output in engine.step():
                    ids += output.new_ids
                    errors += [output.error] if output.error else []
        assert bool(errors) == fails
        assert not fails or "no memory for a recorded step" in str(errors[0])
        found.append(ids)
    engine.scheduler.check_idle()
    engine.close()
    assert found[0] == found[2]
    assert len(found[0]) == 12
