"""What the machine can do, and what no engine on it can beat.

The rates are torch's best of simple cases with the threads that core has: of reading memory, and of multiplying
matrices. A bound of a case follows from the weights and the KV cache in the dtype of the activations alone: the
arithmetic of attention and all else come on top.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch

from core.kv.groups import KVGroup
from core.model.source import ModelSource
from server.measure import Case

READ_BYTES = 1 << 29  # beyond any cache
MATRIX_SIZE = 2048
TRIES = 3
OUTER = ("model.embed_tokens.weight", "lm_head.weight")

Limits = dict[str, list[float]]


def measure_limits(dtype: str) -> Limits:
    """Rates in 1e9 a second, `TRIES` of each: bytes that are read, and operations of matrix products in `dtype` and
    int8 (a multiplication and an addition are two)."""
    data = torch.ones(READ_BYTES // 4)
    size = MATRIX_SIZE
    a, b = (torch.randn(size, size).to(getattr(torch, dtype)) for _ in range(2))
    i, j = (torch.randint(-128, 128, (size, size), dtype=torch.int8) for _ in range(2))
    return {
        "read": _rates(READ_BYTES, data.sum),
        dtype: _rates(2 * size**3, lambda: torch.mm(a, b)),
        "int8": _rates(2 * size**3, lambda: torch._int_mm(i, j)),
    }


def _rates(amount: int, run: Callable[[], object]) -> list[float]:
    run()
    rates = []
    for _ in range(TRIES):
        start_s = time.perf_counter()
        run()
        rates.append(amount / (time.perf_counter() - start_s) / 1e9)
    return rates


@dataclass(frozen=True)
class Sizes:
    """Of a model: elements of its matrices, without the one that gives logits, and of that one; bytes of all; and what
    it caches of past tokens, with the bytes of an element."""

    inner: int
    head: int
    step_bytes: int
    kv_groups: tuple[KVGroup, ...] = ()
    kv_element_bytes: int = 2

    def kv_bytes(self, context: int) -> int:
        """That a step reads for a sequence of `context` tokens: keys and values."""
        kept = sum(
            min(context, group.retain or context) * group.num_layers * group.num_kv_heads * group.head_size
            for group in self.kv_groups
        )
        return 2 * kept * self.kv_element_bytes


def sizes(source: ModelSource, bytes_each: int | None, kv_groups: Sequence[KVGroup], kv_element_bytes: int) -> Sizes:
    """With `bytes_each` for an element of a matrix; None: as stored."""
    matrices = {name: prod(source.shape(name)) for name in source.names() if len(source.shape(name)) > 1}
    head = next(matrices[name] for name in reversed(OUTER) if name in matrices)
    inner = sum(count for name, count in matrices.items() if name not in OUTER)
    step_bytes = source.size_bytes if bytes_each is None else bytes_each * (inner + head)
    return Sizes(inner, head, step_bytes, tuple(kv_groups), kv_element_bytes)


def bound(case: Case, limits: Limits, model: Sizes, matmul: str) -> float:
    """Tokens per second that no engine can pass: each step reads all weights once, and the KV of each sequence, or
    computes with the weights at rate `matmul`. Prefill takes logits of the last token only."""
    read, compute = (statistics.median(limits[name]) * 1e9 for name in ("read", matmul))
    if case.kind == "prefill":
        return compute / (2 * model.inner)
    step_bytes = model.step_bytes + case.batch_size * model.kv_bytes(case.input_len)
    return min(case.batch_size * read / step_bytes, compute / (2 * (model.inner + model.head)))
