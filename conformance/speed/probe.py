"""What the device can do at best, measured: products of matrices, a copy larger than its caches, a launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from conformance.speed.timing import measure
from conformance.target import Target
from core.kernels.dtypes import TORCH_DTYPES

_GEMM_SIZES = (512, 1024, 2048)
_COPY_BYTES = 256 * 2**20
_NUM_SAMPLES = 8

LEAST_PROBED = 0.7
"""Part of a stated peak that a probe should reach. A device is held to that in any case: a bad probe gains nothing."""

MOST_PROBED = 1.05
"""A peak is no peak when the probe reaches more; the rest is the clock's."""


@dataclass(frozen=True)
class Ceilings:
    """Operations per second in the dtype, bytes per second read and written together, seconds of an empty launch."""

    flops_per_s: float
    bytes_per_s: float
    launch_s: float

    def held_to(self, flops_per_s: float | None, bytes_per_s: float | None) -> Ceilings:
        """These, or most of what the device states where that is more."""
        flops = max(self.flops_per_s, LEAST_PROBED * (flops_per_s or 0.0))
        return Ceilings(flops, max(self.bytes_per_s, LEAST_PROBED * (bytes_per_s or 0.0)), self.launch_s)

    def least_s(self, flops: float, moved: float) -> float:
        """The time below which nothing that does this work can be. Source: Williams et al. 2009 (roofline)."""
        return max(flops / self.flops_per_s, moved / self.bytes_per_s) + self.launch_s


def control(target: Target) -> Callable[[], Any]:
    """A small fixed piece of work: how evenly it runs tells how quiet the machine is."""
    a = torch.ones((256, 256), device=target.where)
    return lambda: a @ a


def ceilings(target: Target, dtype: str) -> Ceilings:
    """Probe the device: the best that was seen."""
    kind = TORCH_DTYPES[dtype]
    beside = control(target)

    def best(call: Callable[[], Any]) -> float:
        return measure(target.device, [call], beside, _NUM_SAMPLES).low

    flops = 0.0
    for size in _GEMM_SIZES:
        a = torch.ones((size, size), dtype=kind, device=target.where)
        flops = max(flops, 2 * size**3 / best(lambda a=a: a @ a))  # type: ignore[misc]
    source = torch.zeros(_COPY_BYTES, dtype=torch.uint8, device=target.where)
    into = torch.empty_like(source)
    moved = 2 * _COPY_BYTES / best(lambda: into.copy_(source))
    one = torch.zeros(1, device=target.where)
    return Ceilings(flops, moved, best(lambda: one.add_(0)))
