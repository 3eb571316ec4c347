"""A step that fails ends the requests in it and no others; nothing leaks, and the engine goes on.

Here is a spread of what can fail; test_every_fault.py has all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from core.config import EngineConfig
from core.engine.engine import Engine
from core.engine.front import Front
from core.errors import DeviceError
from core.request import SamplingParams
from tests.core.engine.faults import ABORTED, ERRORS, EVERYONE, Bench, described, faulty_device, spread
from tests.models.tiny import write_family


@pytest.fixture(scope="module", params=[pytest.param(0, marks=pytest.mark.heavy), 1], ids=["depth0", "depth1"])
def bench(request, tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with faulty_device(tmp_path_factory.mktemp("plugin") / "faulty") as fuse:
        made = Bench(tiny_llama_dir, request.param, fuse)
        yield made
        made.engine.close()


def test_everyone_at_once_gives_what_each_gives_alone(bench: Bench) -> None:
    got = bench.run(EVERYONE, ABORTED)
    bench.check(got)
    assert {i for i, each in got.items() if each.reason == "abort"} == {ABORTED}
    assert not any(each.error for each in got.values())
    assert bench.engine.scheduler.num_preemptions, "pages are short, so that faults meet preemption too"
    assert bench.engine.scheduler.num_prefix_hits, "and shared prefixes"


@pytest.mark.parametrize("kind", ERRORS)
def test_the_nth_fails(bench: Bench, kind: str) -> None:
    depth = bench.engine.plan.pipeline_depth
    failed = [bench.run_into_fault(kind, nth) for nth in spread(25)[depth::2]]
    assert sum(map(bool, failed)) > len(failed) / 2
    assert len(set().union(*failed)) >= 6, "faults meet requests of all sorts"


@pytest.mark.parametrize("nth", [300, 777])
def test_a_late_kernel_fails(bench: Bench, nth: int) -> None:
    assert bench.run_into_fault("kernel", nth)


def test_any_row_may_fail(bench: Bench) -> None:
    rows = sorted(set(bench.fuse.num_spent) - {*ERRORS, "pack_weight", "kv_layout"})
    assert {"attn_plan", "attn_paged", "kv_write", "sample", "put_ids", "take_ids", "linear"} <= set(rows)
    assert {"add_bias", "penalize", "apply_mask", "min_p", "logprobs_topk"} <= set(rows)
    for number, row in enumerate(rows):
        assert bench.run_into_fault(row, 1 + 3 * (number % 3))


def test_a_window_beside_a_full_group(tmp_path: Path) -> None:
    with faulty_device(tmp_path / "faulty") as fuse:
        bench = Bench(write_family(tmp_path / "gemma3", "gemma3", sliding_window=8), 1, fuse)
        assert bench.engine.cache.windowed
        for kind in ERRORS:
            for nth in spread(4):
                bench.run_into_fault(kind, nth)
        bench.engine.close()


def test_one_fault_after_the_other(bench: Bench) -> None:
    for nth in (5, 40, 3):
        bench.fuse.arm("kernel", nth, ERRORS["kernel"][1])
        bench.check(bench.run(EVERYONE))
        assert not bench.fuse.armed
    assert not bench.run([0])[0].error


def test_logits_that_are_no_numbers_end_their_request_only(bench: Bench) -> None:
    for spoiled in (1, 2, 7):
        bench.fuse.spoiled_seed = spoiled
        try:
            got = bench.run(EVERYONE)
        finally:
            bench.fuse.spoiled_seed = None
        assert {i: each.error for i, each in got.items() if each.error} == {
            spoiled: "the model's logits are not numbers"
        }
        assert got[spoiled].ids == []
        bench.check(got)
    bench.check(bench.run([1]))


@pytest.mark.parametrize("nth", [1, 3, 10, 18])
def test_a_page_that_cannot_be_had_ends_the_engine(bench: Bench, tiny_llama_dir: Path, nth: int) -> None:
    """Pages are asked for when they are known to be there: it is a defect, and whose tables are right is not known."""
    depth = bench.engine.plan.pipeline_depth
    broken = Bench(tiny_llama_dir, depth, bench.fuse, bench.alone)
    pool = broken.engine.cache.pools[0]
    allocate = pool.allocate

    def short(num: int) -> list[int]:
        bench.fuse.spend("page")
        return allocate(num)

    pool.allocate = short  # type: ignore[method-assign]
    bench.fuse.arm("page", nth, MemoryError("no host memory"))
    got = broken.add(EVERYONE)
    with pytest.raises(MemoryError):
        broken.turn_to_the_end(got)
    assert not bench.fuse.armed
    for i, each in got.items():
        assert each.ids == bench.alone[i].ids[: len(each.ids)]
    with pytest.raises(DeviceError, match="the engine cannot go on: MemoryError: no host memory; open a new one"):
        broken.engine.step()
    broken.engine.close()


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("part", ["_schedule", "_update"])
def test_a_defect_outside_of_any_step_is_not_swallowed(tiny_llama_dir, depth, part):
    """Not even while steps are in flight: it would come again at every turn, and the engine would turn for ever."""
    engine = Engine(EngineConfig(model=str(tiny_llama_dir), device="cpu", pipeline_depth=depth))
    engine.add(Front(engine.info(), []).request([5], SamplingParams(max_tokens=9), request_id="a"))
    while not engine.scheduler.num_steps > depth:
        engine.step()
    defect = ZeroDivisionError("a defect")

    def broken(*_: object) -> None:
        raise defect

    setattr(engine, part, broken)
    with pytest.raises(ZeroDivisionError):
        engine.step()
    with pytest.raises(DeviceError, match=described(defect)):
        engine.step()
    engine.close()
