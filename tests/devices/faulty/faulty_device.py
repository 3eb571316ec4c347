"""A device whose allocations and copies fail when told to, and whose copies land when they are waited for.

Fresh memory is full of NaN and of the largest numbers, so that a step that goes on after a fault shows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from core.plugin import Device, DeviceFacts, Event, Memory, hookimpl

API = (1, 0)
SPEND: list[Callable[[str], None]] = []  # called with "allocation" or "copy" at each; may raise


def spend(kind: str) -> None:
    for each in SPEND:
        each(kind)


def poisoned(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    spend("allocation")
    return torch.full(shape, float("nan") if dtype.is_floating_point else torch.iinfo(dtype).max, dtype=dtype)


class LateCopy(Event):
    """Lands when waited for."""

    def __init__(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        spend("copy")
        self._copy: tuple[torch.Tensor, torch.Tensor] | None = (dst, src)

    def wait(self) -> None:
        spend("copy")
        if self._copy:
            dst, src = self._copy
            dst.copy_(src)
            self._copy = None

    synchronize = wait


class FaultyDevice(Device):
    def probe(self) -> DeviceFacts:
        return DeviceFacts(
            name="faulty", torch_device_type="cpu", arch="a test", count=1, memory_bytes=1 << 28,
            dtypes=("float32",), host_memory=True, accelerator=False, implicit=False,
        )  # fmt: skip

    def open(self, index: int) -> torch.device:
        return torch.device("cpu")

    def memory(self) -> Memory:
        return Memory(1 << 28, 1 << 28)

    def synchronize(self) -> None:
        spend("copy")

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return poisoned(shape, dtype)

    def host_empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return poisoned(shape, dtype)

    def h2d(self, dst: torch.Tensor, src: torch.Tensor) -> Event:
        return LateCopy(dst, src)

    def d2h(self, dst: torch.Tensor, src: torch.Tensor) -> Event:
        return LateCopy(dst, src.clone())  # the device reads in order; the host sees it late


@hookimpl
def core_device() -> Device:
    return FaultyDevice()
