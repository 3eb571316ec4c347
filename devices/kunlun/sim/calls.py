"""Launching kernels, and what the simulator saw."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from devices.kunlun.sim.backend import SimulatedFault, extension, started

Rows = Sequence[int] | torch.Tensor
Declared = torch.Tensor | tuple[torch.Tensor, Rows]
ENGINES = ("compute", "hbm", "h2d", "d2h", "link")


def launch(
    fn: Callable[..., object],
    reads: Iterable[Declared],
    writes: Iterable[Declared],
    seconds: float | None = None,
    name: str = "kernel",
    flops: float = 0.0,
    nbytes: float = 0.0,
    engine: str = "compute",
) -> None:
    """Queue a kernel on the current stream of the first device that is named.

    fn       called in stream order with a host tensor over each of `reads`, then of `writes`; it computes on the host
    reads, writes   device tensors, or pinned ones. (t, rows): only these rows of axis 0; `fn` gets all of t
    seconds  on `engine`; without it, the longer of flops and nbytes by the chip's rates

    Raises: RaceError; SimulatedFault for pageable host memory, a row that is not there, or from within a kernel.
    """
    if seconds is None:
        chip = started()
        seconds = max(flops / chip.flops_per_s, nbytes / chip.bytes_per_s)
    declared = [[_declared(entry, name) for entry in entries] for entries in (reads, writes)]
    extension().launch(fn, *declared, seconds, name, ENGINES.index(engine))


def _declared(entry: Declared, name: str) -> tuple[torch.Tensor, list[int] | None]:
    if isinstance(entry, torch.Tensor):
        return entry, None
    tensor, rows = entry
    if isinstance(rows, torch.Tensor) and rows.device.type != "cpu":
        raise SimulatedFault(f"{name} declares rows by a tensor on {rows.device}: copy it to the host first")
    numbers: list[Any] = rows.tolist() if isinstance(rows, torch.Tensor) else list(rows)
    for row in numbers:
        if not 0 <= row < tensor.shape[0]:
            raise SimulatedFault(f"{name} declares row {row} of {tensor.shape[0]} rows: declare rows that are there")
    return tensor, numbers


def races() -> list[str]:
    """The races found so far that were not raised, and forgets them."""
    found: list[str] = extension().races()
    return found


def now_s() -> float:
    """Virtual time of the host, since the start."""
    now: float = extension().now_s()
    return now


def busy_s(engine: str, index: int = 0) -> float:
    """Virtual seconds that an engine of a device has worked: "compute", "hbm", "h2d", "d2h" or "link"."""
    busy: float = extension().busy_s(index, ENGINES.index(engine))
    return busy
