"""Faults and aborts while sequences go to the host and come back: nothing is lost, and all others end as if alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from core import LLM, SamplingParams
from core.engine.scheduler import Scheduler
from core.engine.step import StepPlan
from core.engine.swap import Pace
from tests.core.engine.faults import ABORTED, ERRORS, EVERYONE, Bench, faulty_device
from tests.core.engine.test_scheduler import Arithmetic, make, request
from tests.core.engine.test_swap import FEW, INSTALL, PROMPTS, SWAP_GIB
from tests.plugins import install_plugin

STATES = {("loading", True, True), ("preempted", True, True), ("waiting", False, True)}


@pytest.mark.parametrize("depth", [0, 1])
def test_faults(tiny_llama_dir: Path, tmp_path: Path, depth: int) -> None:
    """A transfer that fails ends the requests of its step and no others; what it was to move is computed again."""
    with faulty_device(tmp_path / "faulty") as fuse:
        bench = Bench(tiny_llama_dir, depth, fuse, swap_space=SWAP_GIB)
        swaps = bench.engine.scheduler.swaps
        bench.check(bench.run(EVERYONE, ABORTED))
        assert swaps.num_out
        for nth in (1, 2, 3, 5, 8, 11):
            fail_a_copy(bench, nth)
        for kind in ("kernel", "copy", "allocation"):
            for nth in (40, 90, 150):
                bench.run_into_fault(kind, nth)
        assert swaps.num_pages_in > 10
        bench.engine.close()


def fail_a_copy(bench: Bench, nth: int) -> None:
    """Let a layer's copy fail; not every run swaps as often as others do."""
    bench.fuse.arm("kv_swap", nth, ERRORS["kernel"][nth % 2])
    for turn in range(8):
        bench.check(bench.run([(i + nth + turn) % len(EVERYONE) for i in EVERYONE]))
        if not bench.fuse.armed:
            return
    raise AssertionError("nothing was swapped")


def preempted(num_pages: int = 8) -> tuple[Scheduler, Arithmetic, StepPlan]:
    """Three sequences of which one goes to the host, so many pages beside a step; with the plan that begins it."""
    scheduler, device = make(num_pages=13, page=1, max_tokens=12, max_seqs=3, num_swap=40)
    scheduler.swaps.pace = Pace(num_pages * sum(group.num_layers for group in scheduler.cache.groups))
    for i in range(3):
        scheduler.add(request(i, [i, 2, 3], 8))
    plan = scheduler.schedule()
    while not plan.transfers:
        scheduler.update(device.run(plan))
        plan = scheduler.schedule()
    return scheduler, device, plan


def test_other_ranks_wait_for_what_was_given_up() -> None:
    """A step that failed is dropped by all ranks alike; their transfers go on, and the next plan says so."""
    scheduler, _, plan = preempted()
    [transfer] = plan.transfers
    assert plan.transferred == 0
    scheduler.fail("a mask broke")
    assert not scheduler.swaps.under_way
    assert scheduler.schedule().transferred == transfer.number


def test_an_event_that_fails(tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A transfer whose end is an error: those in the step that saw it end, and the next ones have all they need."""
    install_plugin(monkeypatch, tmp_path / "plugin", "late", INSTALL["late"])
    import late_plugin

    done, failing = late_plugin.Late.done, [2, 5]

    def fails(event: object) -> bool:
        failing[:] = [n - 1 for n in failing]
        if 0 in failing:
            raise RuntimeError("the transfer broke")
        return bool(done(event))

    monkeypatch.setattr(late_plugin.Late, "done", fails)
    few = {**FEW, "dtype": "float32", "device": "late"}
    with LLM(str(tiny_llama_dir), swap_space=SWAP_GIB, max_num_seqs=4, fallback="allow", **few) as llm:
        ended = run_all(llm)
        assert not [n for n in failing if n > 0], "both faults came"
        assert 1 <= sum(reason == "error" for reason in ended.values()) < len(PROMPTS)
        assert set(run_all(llm).values()) == {"length"}


def run_all(llm: LLM) -> dict[str, str | None]:
    """How each prompt's output ends."""
    sampling = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    for i, prompt in enumerate(PROMPTS):
        llm.engine.add(llm._front.request(prompt, sampling, request_id=str(i)))
    ended = {}
    while llm.engine.busy:
        ended.update({output.request_id: output.finish_reason for output in llm.engine.step()})
    llm.engine.scheduler.check_idle()
    return ended


def test_aborted_on_the_way(tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At any time: while waiting on the host, while going there or coming back; the accounts balance afterwards."""
    install_plugin(monkeypatch, tmp_path / "plugin", "late", INSTALL["late"])
    few = {**FEW, "dtype": "float32", "device": "late"}
    with LLM(str(tiny_llama_dir), swap_space=SWAP_GIB, max_num_seqs=4, fallback="allow", **few) as llm:
        seen: set[tuple[str, bool, bool]] = set()
        for turn in range(12):
            abort_one(llm, turn, seen)
            if seen >= STATES:
                return
        raise AssertionError(f"only {seen}")


def abort_one(llm: LLM, turn: int, seen: set[tuple[str, bool, bool]]) -> None:
    """Abort the first sequence that is in a state not seen yet: its status, whether it is moving, and on the host."""
    sampling = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    for i, prompt in enumerate(PROMPTS):
        llm.engine.add(llm._front.request(prompt, sampling, request_id=f"{turn}-{i}"))
    aborted = False
    while llm.engine.busy:
        llm.engine.step()
        for seq in llm.engine.scheduler.sequences():
            state = (seq.status.value, seq.moves, seq.host is not None)
            if not aborted and state not in seen and seq.num_outputs:
                seen.add(state)
                llm.engine.abort(seq.request.request_id)
                aborted = True
    llm.engine.scheduler.check_idle()
