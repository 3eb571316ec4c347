"""An engine under a mixed workload in which one thing fails, and what each request must give all the same.

The workload: greedy and seeded draws, log-probabilities of outputs and of a prompt, penalties, a bias, a form, prefixes
that are shared, more requests than rows, too few pages for those that run (so some are preempted), and one that is
aborted. What can fail is counted by kind; a fault is armed for the Nth of a kind, and is proven to have come.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from core.config import EngineConfig
from core.engine.engine import Engine
from core.engine.front import Front
from core.request import Logprobs, Request, SamplingParams, SequenceOutput, Structured
from tests.plugins import install_plugin

MAX_SEQS = 3
NUM_ALL = 200
LOGPROB_ATOL = 1e-4  # ids must be equal; sums are made in another order in other batches
ERRORS: dict[str, list[Exception]] = {
    "kernel": [RuntimeError("the kernel broke"), torch.OutOfMemoryError("no room")],
    "allocation": [torch.OutOfMemoryError("no room"), MemoryError("no host memory")],
    "copy": [RuntimeError("the copy broke"), TimeoutError("the copy does not end")],
}
PARAMS: list[dict[str, Any]] = [
    {"max_tokens": 3},
    {"max_tokens": 9, "temperature": 0.8, "top_k": 20},
    {"max_tokens": 5, "logprobs": 3},
    {"max_tokens": 3, "prompt_logprobs": 2, "temperature": 1.0, "min_p": 0.01},
    {"max_tokens": 8, "temperature": 1.0, "repetition_penalty": 1.3, "presence_penalty": 0.5, "logprobs": 0},
    {"max_tokens": 8, "temperature": 1.0, "structured": Structured("regex", "[a-f]{2,9}")},
    {"max_tokens": 10, "logit_bias": {9: 2.0, 40: -50.0}, "top_p": 0.9, "temperature": 0.7},
    {"max_tokens": 12},
]
EVERYONE = tuple(range(len(PARAMS)))
ABORTED = 7
_RNG = random.Random(7)
_PREFIX = [_RNG.randrange(3, 384) for _ in range(18)]
PROMPTS = [_PREFIX[: _RNG.randrange(8, 18)] + [_RNG.randrange(3, 384) for _ in range(3)] for _ in PARAMS]


def spread(num: int) -> list[int]:
    """So many N of 1 .. NUM_ALL: dense at the start, where they cut the first steps at each of their parts."""
    return sorted({1 + round((NUM_ALL - 1) * (i / (num - 1)) ** 1.6) for i in range(num)})


def described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


class Fuse:
    """Counts what may fail, and lets one of it fail. Kernels are of kind "kernel", and of one named by their row."""

    def __init__(self) -> None:
        self.num_spent: Counter[str] = Counter()
        self.armed: tuple[str, int, Exception] | None = None
        self.spoiled_seed: int | None = None  # of the request whose logits are to be NaN

    def arm(self, kind: str, nth: int, error: Exception) -> None:
        """Let number `nth` of this kind from now on fail."""
        self.armed = (kind, self.num_spent[kind] + nth, error)

    def spend(self, kind: str) -> None:
        """One more of `kind`."""
        self.num_spent[kind] += 1
        if self.armed and self.armed[:2] == (kind, self.num_spent[kind]):
            error, self.armed = self.armed[2], None
            raise error

    def tap(self, row: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.spend("kernel")
            self.spend(row)
            if row == "sample":
                self._spoil(*args)
            return kernel(*args, **kwargs)

        return call

    def _spoil(self, logits: torch.Tensor, temperature: Any, top_k: Any, top_p: Any, seed: Any, counter: Any) -> None:
        if self.spoiled_seed is not None:
            logits[seed[:, 0] == self.spoiled_seed, 7] = float("nan")


@dataclass
class Got:
    """What one request gave."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    prompt_logprobs: list[Logprobs] = field(default_factory=list)
    reason: str | None = None
    error: str | None = None

    def take(self, output: SequenceOutput) -> None:
        assert self.reason is None, "output after the end"
        self.ids += output.new_ids
        self.logprobs += output.logprobs
        self.prompt_logprobs += output.prompt_logprobs
        self.reason, self.error = output.finish_reason, output.error

    def check(self, alone: Got) -> None:
        """All of what it gives alone; the start of that, where it ended with an error or was aborted."""
        whole = self.reason not in ("error", "abort")
        assert not whole or self.reason == alone.reason
        assert (self.reason == "error") == bool(self.error)
        assert self.ids == (alone.ids if whole else alone.ids[: len(self.ids)])
        for mine, others in ((self.logprobs, alone.logprobs), (self.prompt_logprobs, alone.prompt_logprobs)):
            assert len(mine) == len(others) if whole else len(mine) <= len(others)
            for a, b in zip(mine, others, strict=False):
                pairs = zip([a.logprob, *a.top_logprobs], [b.logprob, *b.top_logprobs], strict=True)
                assert all(abs(x - y) <= LOGPROB_ATOL for x, y in pairs)


@contextmanager
def faulty_device(folder: Path) -> Iterator[Fuse]:
    """The device of tests/devices/faulty is installed; a fuse counts its allocations and copies."""
    source = (Path(__file__).parents[2] / "devices" / "faulty" / "faulty_device.py").read_text()
    num_threads, fuse = torch.get_num_threads(), Fuse()
    torch.set_num_threads(1)  # threads that wait for each other cost most of the time of so small a model
    with pytest.MonkeyPatch.context() as patch:
        install_plugin(patch, folder, "faulty", source)
        import faulty_plugin

        faulty_plugin.SPEND[:] = [fuse.spend]
        yield fuse
    torch.set_num_threads(num_threads)


class Bench:
    """An engine of few rows and pages, and what each request gives alone."""

    def __init__(
        self, model: Path, depth: int, fuse: Fuse, alone: list[Got] | None = None, swap_space: float = 0.0
    ) -> None:
        config = EngineConfig(
            model=str(model), device="faulty", pipeline_depth=depth, max_num_seqs=MAX_SEQS, max_num_batched_tokens=24,
            num_kv_blocks=11, block_size=4, max_model_len=32, swap_space=swap_space,
        )  # fmt: skip
        self.fuse = fuse
        self.engine = Engine(config, tap=fuse.tap)
        self.front = Front(self.engine.info(), [])
        self.alone = alone or [self.run([i])[i] for i in EVERYONE]
        for got, params, prompt in zip(self.alone, PARAMS, PROMPTS, strict=True):
            assert got.reason in ("length", "stop")
            assert len(got.logprobs) == (len(got.ids) if "logprobs" in params else 0)
            assert len(got.prompt_logprobs) == (len(prompt) - 1 if "prompt_logprobs" in params else 0)

    def request(self, i: int) -> Request:
        sampling = SamplingParams(**{"temperature": 0.0, "seed": i, **PARAMS[i]})
        return self.front.request(PROMPTS[i], sampling, request_id=str(i))

    def add(self, which: Sequence[int]) -> dict[int, Got]:
        """Queue these, their grammars compiled: so that steps, and with them faults, are the same each time."""
        for i in which:
            self.engine.add(self.request(i))
        self.engine._grammars.wait(60)
        return {i: Got() for i in which}

    def run(self, which: Sequence[int], abort: int | None = None) -> dict[int, Got]:
        """What each of these gives, together; `abort` is aborted once it has given two ids."""
        got = self.add(which)
        self.turn_to_the_end(got, abort)
        self.check_nothing_leaked()
        return got

    def turn_to_the_end(self, got: dict[int, Got], abort: int | None = None) -> None:
        while self.engine.busy:
            for output in self.engine.step():
                got[int(output.request_id)].take(output)
            if abort is not None and len(got[abort].ids) >= 2:
                output = self.engine.abort(str(abort))
                if output:
                    got[abort].take(output)

    def run_into_fault(self, kind: str, nth: int) -> set[int]:
        """Everyone together until the fault has come, then some again; returns who ended with an error.

        Each `nth` has its own order of requests, so that faults in the first steps meet all of them.
        """
        order = [(i + nth) % len(EVERYONE) for i in EVERYONE]
        error = ERRORS.get(kind, ERRORS["kernel"])[nth % 2]
        self.fuse.arm(kind, nth, error)
        while self.fuse.armed:
            before = self.fuse.num_spent[kind]
            got = self.run(order, ABORTED)
            assert self.fuse.num_spent[kind] > before, f"nothing of kind {kind}"
            self.check(got)
        failed = {i for i in EVERYONE if got[i].error}
        assert len(failed) <= MAX_SEQS, "those of the steps in flight, and no others"
        assert all(got[i].error == f"a step failed: {described(error)}" for i in failed)
        again = self.run((1, 5))
        self.check(again)
        assert not any(each.error for each in again.values())
        return failed

    def recover(self) -> None:
        """After its end: forget what was under way, and be as a new engine would be, but for the cache."""
        executor, scheduler = self.engine.executor, self.engine.scheduler
        executor._others, executor._is_broken = None, False
        executor.drop()
        scheduler.fail("the engine ended")
        for seq in scheduler.sequences():
            self.engine.abort(seq.request.request_id)
        self.engine._over = None
        self.check_nothing_leaked()

    def check(self, got: dict[int, Got]) -> None:
        for i, each in got.items():
            each.check(self.alone[i])

    def check_nothing_leaked(self) -> None:
        scheduler, cache, executor = self.engine.scheduler, self.engine.cache, self.engine.executor
        scheduler.check_idle()
        assert (scheduler.num_in_flight, scheduler.num_waiting, scheduler.running) == (0, 0, [])
        assert (len(executor._flights), executor._awaited, self.engine._grammars._begun) == (0, None, {})
        for pool, index in zip(cache.pools, cache.indexes, strict=True):
            assert not pool.refs.any()
            assert sorted([*pool._free, *pool.cached_pages().tolist()]) == list(range(1, pool.num_pages))
            assert sorted(index._page.values()) == pool.cached_pages().tolist()
