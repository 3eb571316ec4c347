"""What the host does for a step beside running it: schedule, pack, update, encode. And what a long prefix costs.

Measured on the real parts without a model: a device that draws 1 at once.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from core.plugin import Device, DeviceFacts, Memory, ShapePolicy

if TYPE_CHECKING:
    import torch

    from core.engine.pack import Packer
    from core.engine.rows import Rows
    from core.engine.step import StepPlan
    from core.request import Request

T = TypeVar("T")


class HostDevice(Device):
    """Host memory; nothing runs on it."""

    def probe(self) -> DeviceFacts:
        return DeviceFacts("host", "cpu", "", 1, 0, ("float32",))

    def open(self, index: int) -> torch.device:
        import torch

        return torch.device("cpu")

    def memory(self) -> Memory:
        return Memory(0, 0)

    def synchronize(self) -> None:
        """Nothing is ever under way."""


def step_costs(num_seqs: int, num_steps: int, context: int = 512) -> dict[str, list[float]]:
    """Microseconds of each part in each step, `num_seqs` sequences running with about `context` tokens."""
    import torch

    from core.engine.messages import Outputs
    from core.engine.pack import Packer
    from core.engine.rows import Rows
    from core.engine.scheduler import Scheduler
    from core.engine.step import StepOutput
    from core.kv.cache import KVCache
    from core.kv.groups import KVGroup

    page, length = 16, context + num_steps + 64
    blocks = -(-length // page)
    cache = KVCache([KVGroup(1, 1, 1)], [num_seqs * blocks + 1], page, prefix=True)
    tokens = num_seqs * context
    scheduler = Scheduler(cache, max_tokens=tokens, max_seqs=num_seqs, max_model_len=length, spec=b"cost")
    rows = Rows(num_seqs + 1, blocks, 1)
    packer = Packer(
        HostDevice(),
        torch.device("cpu"),
        rows,
        page_tokens=page,
        shapes=ShapePolicy(),
        max_tokens=tokens,
        max_seqs=num_seqs,
        max_logits=num_seqs,
        max_blocks=blocks,
        sets=1,
        vocab_size=1024,
    )
    for i in range(num_seqs):
        ids = [2 + (i + j) % 1000 for j in range(context - i % page)]  # page ends do not fall together
        scheduler.add(_request(i, ids, num_steps + 8))
    costs: dict[str, list[float]] = {"schedule": [], "pack": [], "update": [], "encode": []}

    def timed(name: str, work: Callable[[], T]) -> T:
        start = time.perf_counter()
        result = work()
        costs[name].append((time.perf_counter() - start) * 1e6)
        return result

    gc.collect()
    gc.freeze()  # as the engine process does once it has loaded
    for _ in range(num_steps):
        plan = timed("schedule", scheduler.schedule)
        timed("pack", partial(_pack, rows, packer, plan))
        outputs = timed("update", partial(scheduler.update, StepOutput([1] * sum(plan.samples))))
        timed("encode", partial(msgspec.msgpack.encode, Outputs(outputs)))
    return _steady(costs, num_steps)


def _request(number: int, ids: list[int], max_tokens: int) -> Request:
    from core.request import Request

    name = f"request-{number}"
    return Request(
        request_id=name,
        prompt_ids=ids,
        temperature=0.0,
        top_k=0,
        top_p=1.0,
        seed=number,
        max_tokens=max_tokens,
        stop_ids=[0],
    )


def _steady(costs: dict[str, list[float]], num_steps: int) -> dict[str, list[float]]:
    """Without the steps in which prompts are computed; and each step's sum."""
    steady = {name: values[num_steps // 10 :] for name, values in costs.items()}
    return {**steady, "sum": [sum(parts) for parts in zip(*steady.values(), strict=True)]}


def _pack(rows: Rows, packer: Packer, plan: StepPlan) -> None:
    rows.apply(plan)
    packer.pack(plan)


def prefix_costs(num_tokens: int, repetitions: int) -> dict[str, list[float]]:
    """Microseconds to find and pin a cached prefix of `num_tokens` tokens, and that of a turn that continues it."""
    from core.kv.cache import KVCache
    from core.kv.groups import KVGroup
    from core.kv.prefix import chain_keys, root_key

    page, turn = 16, 512
    num_pages = (num_tokens + turn) // page
    cache = KVCache([KVGroup(1, 1, 1)], [num_pages + 8], page, prefix=True)
    ids = list(range(num_tokens + turn))
    keys = chain_keys(root_key(b"cost", ""), ids, page)
    table = cache.open(cache.lease(b"", 0))
    costs: dict[str, list[float]] = {"find and pin": [], "continuing turn": []}
    cache.grow(table, num_tokens)
    cache.commit(table, keys, num_tokens // page)
    for name in costs:
        for _ in range(repetitions):
            start = time.perf_counter()
            lease = cache.lease(keys, num_tokens + turn - 1)
            costs[name].append((time.perf_counter() - start) * 1e6)
            assert lease.num_tokens == num_tokens, "the prefix was not found"
            cache.cancel(lease)
        if name == "find and pin":  # the first turn ends: its pages are held by nobody, like any finished session's
            cache.close(table)
    return costs


def summary(values: list[float]) -> tuple[float, float]:
    """Median and 99th percentile."""
    return statistics.median(values), statistics.quantiles(values, n=100)[98]
