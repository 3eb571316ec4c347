"""A kernel that fails ends the requests of its step and no others; nothing leaks, and the engine goes on."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from core.config import EngineConfig
from core.engine.engine import Engine
from core.engine.front import Front
from core.request import Request, SamplingParams

MAX_SEQS = 3
_RNG = random.Random(7)
PREFIX = [_RNG.randrange(3, 384) for _ in range(40)]
PROMPTS = [PREFIX[: _RNG.randrange(1, 40)] + [_RNG.randrange(3, 384) for _ in range(5)] for _ in range(7)]
ERRORS = [RuntimeError("the kernel broke"), torch.OutOfMemoryError("no room")]


class Faults:
    """A tap that raises at one call of a kernel, and one that spoils logits."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.fuse: tuple[str | None, int] | None = None
        self.error: Exception = ERRORS[0]
        self.spoiled_seed: int | None = None

    def arm(self, row: str | None, nth: int, error: Exception) -> None:
        """Let call number `nth` from now on fail, of this row or of any."""
        self.fuse, self.error = (row, nth), error

    def tap(self, row: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls[row] += 1
            if self.fuse and self.fuse[0] in (row, None):
                self.fuse = (self.fuse[0], self.fuse[1] - 1)
                if self.fuse[1] == 0:
                    self.fuse = None
                    raise self.error
            if row == "sample":
                self.spoil(*args)
            return kernel(*args, **kwargs)

        return call

    def spoil(self, logits: torch.Tensor, temperature: Any, top_k: Any, top_p: Any, seed: Any, counter: Any) -> None:
        if self.spoiled_seed is not None:
            logits[seed[:, 0] == self.spoiled_seed, 7] = float("nan")


class Bench:
    """An engine of three rows under seven requests, and what each of them gives alone."""

    def __init__(self, model: Path, depth: int) -> None:
        self.faults = Faults()
        config = EngineConfig(
            model=str(model), device="cpu", dtype="float32", pipeline_depth=depth, max_num_seqs=MAX_SEQS,
            max_num_batched_tokens=24, num_kv_blocks=9, max_model_len=128,
        )  # fmt: skip
        self.engine = Engine(config, tap=self.faults.tap)
        self.front = Front(self.engine.info(), [])
        self.alone = [self.run([i])[0][i] for i in range(len(PROMPTS))]

    def request(self, i: int) -> Request:
        """Greedy, except for one; of different lengths."""
        sampling = SamplingParams(temperature=0.8 if i == 4 else 0.0, top_k=20, seed=i, max_tokens=3 + 5 * i)
        return self.front.request(PROMPTS[i], sampling, request_id=str(i))

    def run(self, which: list[int]) -> tuple[dict[int, list[int]], dict[int, str]]:
        """Ids of each request, and the errors of those that had one."""
        for i in which:
            self.engine.add(self.request(i))
        ids: dict[int, list[int]] = {i: [] for i in which}
        reasons: dict[int, str] = {}
        errors: dict[int, str] = {}
        while self.engine.busy:
            for output in self.engine.step():
                i = int(output.request_id)
                assert i not in reasons, "output after the end"
                ids[i] += output.new_ids
                if output.finish_reason:
                    reasons[i] = output.finish_reason
                if output.error:
                    errors[i] = output.error
        assert reasons == {i: "error" if i in errors else "length" for i in which}
        self.check_nothing_leaked()
        return ids, errors

    def check_nothing_leaked(self) -> None:
        scheduler = self.engine.scheduler
        assert (scheduler.num_in_flight, scheduler.num_waiting, scheduler.running) == (0, 0, [])
        assert sorted(scheduler._rows) == list(range(1, MAX_SEQS + 1))
        for pool in self.engine.cache.pools:
            assert pool.num_used == 0
            assert not pool.refs.any()
            assert pool.num_free + pool.num_cached == pool.num_pages - 1

    def check_fault(self) -> set[int]:
        """Run everything once under the fault that is armed; returns who ended with an error."""
        ids, errors = self.run(list(range(len(PROMPTS))))
        assert self.faults.fuse is None, "the fault came"
        for i, given in ids.items():
            wanted = self.alone[i][: len(given)] if i in errors else self.alone[i]
            assert given == wanted, i
        return set(errors)


@pytest.fixture(scope="module", params=[0, 1], ids=["depth0", "depth1"])
def bench(request: pytest.FixtureRequest, tiny_llama_dir: Path) -> Iterator[Bench]:
    made = Bench(tiny_llama_dir, request.param)
    yield made
    made.engine.close()


def test_everyone_at_once_gives_what_each_gives_alone(bench: Bench) -> None:
    ids, errors = bench.run(list(range(len(PROMPTS))))
    assert not errors
    assert [ids[i] for i in range(len(PROMPTS))] == bench.alone
    assert bench.engine.scheduler.num_preemptions, "pages are short, so that faults meet preemption too"


@pytest.mark.parametrize("nth", [1, 2, 9, 26, 34, 35, 60, 131, 300, 777])
def test_the_nth_kernel_call_fails(bench: Bench, nth: int) -> None:
    bench.faults.arm(None, nth, ERRORS[nth % 2])
    failed = bench.check_fault()
    assert 1 <= len(failed) <= MAX_SEQS, "those of the steps in flight, and no others"
    ids, errors = bench.run([0, 6])
    assert (ids[0], ids[6], errors) == (bench.alone[0], bench.alone[6], {})


def test_any_row_may_fail(bench: Bench) -> None:
    rows = sorted(set(bench.faults.calls) - {"pack_weight", "kv_layout"})
    assert {"attn_plan", "attn_paged", "kv_write", "sample", "put_ids", "take_ids", "linear"} <= set(rows)
    for number, row in enumerate(rows):
        bench.faults.arm(row, 1 + 3 * (number % 3), ERRORS[0])
        assert 1 <= len(bench.check_fault()) <= MAX_SEQS


def test_the_error_says_what_happened(bench: Bench) -> None:
    bench.faults.arm("linear", 1, ERRORS[0])
    _, errors = bench.run([2])
    assert errors == {2: "a step failed: RuntimeError: the kernel broke"}


def test_one_fault_after_the_other(bench: Bench) -> None:
    for nth in (5, 40, 3):
        bench.faults.arm(None, nth, ERRORS[1])
        assert bench.check_fault()
    assert not bench.run([0])[1]


def test_logits_that_are_no_numbers_end_their_request_only(bench: Bench) -> None:
    for spoiled in (0, 4, 6):
        bench.faults.spoiled_seed = spoiled
        try:
            ids, errors = bench.run(list(range(len(PROMPTS))))
        finally:
            bench.faults.spoiled_seed = None
        assert errors == {spoiled: "the model's logits are not numbers"}
        assert ids == {i: [] if i == spoiled else alone for i, alone in enumerate(bench.alone)}
    assert bench.run([0])[0] == {0: bench.alone[0]}


def test_a_defect_outside_of_any_step_is_not_swallowed(tiny_llama_dir):
    """It would come again at every turn, and the engine would turn for ever."""
    engine = Engine(EngineConfig(model=str(tiny_llama_dir), device="cpu"))
    engine.add(Front(engine.info(), []).request([5], SamplingParams(max_tokens=2), request_id="a"))
    engine._schedule = lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(ZeroDivisionError):
        engine.step()
    engine.close()
