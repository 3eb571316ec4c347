"""Traces: complete JSON at any moment, spans that nest, every kernel and every step, and a bound."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams
from core.clock import ManualClock
from core.engine import profile as profiles
from core.engine.profile import DEVICE, ENGINE, Profile
from core.errors import ConfigError
from core.kernels.bind import KernelSet

Events = list[dict[str, Any]]
PLAIN = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
SHAPED = SamplingParams(
    temperature=0.8, max_tokens=4, seed=1, logit_bias={5: 1.0}, presence_penalty=0.5, allowed_token_ids=(5, 6, 7),
    min_p=0.1, logprobs=2, ignore_eos=True,
)  # fmt: skip


def read(path: Path) -> Events:
    events: Events = json.loads(path.read_text())
    return events


def spans(events: Events, track: int) -> list[tuple[str, int, int]]:
    """(name, start, end) in nanoseconds, in order of their start; of equals, the outer first."""
    found = [e for e in events if e["ph"] == "X" and e["tid"] == track]
    timed = [(e["name"], round(e["ts"] * 1000), round((e["ts"] + e["dur"]) * 1000)) for e in found]
    return sorted(timed, key=lambda span: (span[1], -span[2]))


def children(events: Events, track: int) -> dict[str | None, Counter[str]]:
    """Names of spans by the name of the span they lie in. Fails for spans that overlap without nesting."""
    inside: dict[str | None, Counter[str]] = defaultdict(Counter)
    open_spans: list[tuple[str, int]] = []
    for name, start, end in spans(events, track):
        while open_spans and open_spans[-1][1] <= start:
            open_spans.pop()
        assert not open_spans or end <= open_spans[-1][1], f"{name} outlives {open_spans[-1][0]}"
        inside[open_spans[-1][0] if open_spans else None][name] += 1
        open_spans.append((name, end))
    return inside


@pytest.mark.parametrize("depth", [0, 1])
def test_a_run_on_the_cpu(tiny_llama_dir: Path, tmp_path: Path, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bound: set[str] = set()
    bind = KernelSet.bind

    def noting(kernels: KernelSet, name: str, *args: Any, **fixed: Any) -> Any:
        bound.add(name)
        return bind(kernels, name, *args, **fixed)

    monkeypatch.setattr(KernelSet, "bind", noting)
    path = tmp_path / "trace.json"
    options: dict[str, Any] = {"device": "cpu", "dtype": "float32", "num_kv_blocks": 64, "pipeline_depth": depth}
    with LLM(str(tiny_llama_dir), profile=str(path), **options) as llm:
        outputs = llm.generate([[3, 4, 5], [6], list(range(3, 40))], [PLAIN, SHAPED, PLAIN])
        assert [len(output.token_ids) for output in outputs] == [6, 4, 6]
        num_steps = llm.engine.scheduler.num_steps
        assert len(read(path)) > 100, "complete while the engine lives"
    events = read(path)

    on_engine, on_device = children(events, ENGINE), children(events, DEVICE)
    assert set(on_engine[None]) == {"turn", "write trace"}
    assert on_engine["turn"] == {"schedule": on_engine[None]["turn"], "collect": num_steps, "update": num_steps}
    assert on_device[None]["launch"] == num_steps
    assert on_device["launch"]["pack"] == num_steps
    assert bound >= {
        "linear",
        "attn_paged",
        "penalize",
        "apply_mask",
        "min_p",
        "add_bias",
        "logprobs_topk",
        "pack_weight",
    }
    called = set(on_device["launch"]) | set(on_device[None])
    assert called - {"launch", "pack"} == bound - {"kv_export", "kv_import"}  # called when entries travel

    steps = [e for e in events if e.get("cat") == "step"]
    assert [e["id"] for e in steps if e["ph"] == "b"] == list(range(1, num_steps + 1))
    assert [e["id"] for e in steps if e["ph"] == "e"] == list(range(1, num_steps + 1))
    launches = [e["args"] for e in events if e["name"] == "launch"]
    assert launches[0] == {"step": 1, "sequences": 3, "tokens": 3 + 1 + 37, "draws": 3}
    assert [e["args"] for e in steps if e["ph"] == "b"] == launches
    labels = [e["args"]["labels"] for e in events if e["name"] == "process_labels"]
    assert "host's" in labels[0]


def test_steps_that_fail_are_there_too(tiny_llama_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with LLM(str(tiny_llama_dir), profile=str(path), device="null", pipeline_depth=1) as llm:
        runner = llm.engine.executor.runner
        pack = runner.pack

        def broken(plan: Any) -> Any:
            runner.pack = pack
            raise RuntimeError("the kernel broke")

        runner.pack = broken
        with pytest.raises(Exception, match="the kernel broke"):
            llm.generate([[1]], PLAIN)
        llm.generate([[1]], PLAIN)
        num_steps = llm.engine.scheduler.num_steps
    begun = [e["id"] for e in read(path) if e["ph"] == "b"]
    assert sorted(begun) == list(range(1, num_steps + 1))


def test_nothing_is_wrapped_unasked(tiny_llama_dir: Path) -> None:
    with LLM(str(tiny_llama_dir), device="null") as llm:
        engine = llm.engine
        assert engine.profile is None
        assert engine._schedule == engine.scheduler.schedule
        assert engine.executor.launch == engine.executor.runner.launch
        assert engine.executor.runner.pack == engine.executor.runner._packer.pack
        assert engine.cache.events is None


KILLED = """
import os, signal, sys
from core import LLM, SamplingParams
llm = LLM(sys.argv[1], device="null", profile=sys.argv[2], max_model_len=500)
for number, _ in enumerate(llm.stream([1], SamplingParams(temperature=0, max_tokens=400, ignore_eos=True))):
    if number == 300:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_a_complete_trace(tiny_llama_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    done = subprocess.run([sys.executable, "-c", KILLED, tiny_llama_dir, path], timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    names = Counter(event["name"] for event in read(path))
    assert names["launch"] > 50


def test_it_is_bounded_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(profiles, "MAX_EVENTS", 50)
    clock = ManualClock()
    profile = Profile(str(tmp_path / "trace.json"), clock)
    tick = profile.timed("tick", clock.advance)
    for _ in range(30):
        for _ in range(7):
            tick(0.1)
        profile.write()
    profile.close()
    events = read(tmp_path / "trace.json")
    kinds = Counter(event["ph"] for event in events)
    assert kinds == {"M": 4, "X": 50, "i": 1}
    assert "the trace is full" in events[-1]["name"]
    assert "the trace is full" in caplog.text
    assert {event["dur"] for event in events if event["name"] == "tick"} == {100_000.0}


def test_a_file_that_cannot_be_written_is_named(tiny_llama_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"profile is {tmp_path}: it cannot be written"):
        LLM(str(tiny_llama_dir), device="null", profile=str(tmp_path))


def test_a_wrapped_call_that_raises_has_a_span(tmp_path: Path) -> None:
    clock = ManualClock()
    profile = Profile(str(tmp_path / "t"), clock)

    def fails() -> None:
        clock.advance(0.002)
        raise KeyError("x")

    with pytest.raises(KeyError):
        profile.tap(None)("linear", fails)()
    profile.close()
    assert spans(read(tmp_path / "t"), DEVICE) == [("linear", 0, 2_000_000)]
