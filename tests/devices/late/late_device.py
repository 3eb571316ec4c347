"""A device on CPU memory whose transfers to the host and back are late: their ends come after several questions, not in
the order in which they began, and what they copy lands only then."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from core.kernels.reference import copy, kv
from core.kernels.row import Implementation
from core.plugin import Device, DeviceFacts, Event, Memory, hookimpl

API = (1, 0)
RNG = random.Random(3)
ASKED = [0]  # questions so far, whether anything has ended
Work = list[Callable[[], object]]


class Late(Event):
    """Has ended after a number of questions about anything; its work is done when that is seen."""

    def __init__(self, work: Work) -> None:
        self._work, self._due = work, ASKED[0] + RNG.randrange(1, 12)

    def done(self) -> bool:
        ASKED[0] += 1
        if ASKED[0] >= self._due:
            self.synchronize()
        return ASKED[0] >= self._due

    def synchronize(self) -> None:
        while self._work:
            self._work.pop(0)()


class LateDevice(Device):
    def __init__(self) -> None:
        self.beside: Work | None = None  # what was launched inside `aside`
        self.events: list[Late] = []

    def probe(self) -> DeviceFacts:
        return DeviceFacts(
            name="late", torch_device_type="cpu", arch="a test", count=1, memory_bytes=1 << 28,
            dtypes=("float32",), host_memory=True, accelerator=False, implicit=False,
        )  # fmt: skip

    def open(self, index: int) -> torch.device:
        return torch.device("cpu")

    def memory(self) -> Memory:
        return Memory(1 << 28, 1 << 28)

    def synchronize(self) -> None:
        for event in self.events:
            event.synchronize()

    @contextmanager
    def aside(self) -> Iterator[None]:
        self.beside = []
        yield
        self.beside = None

    def record(self) -> Event:
        if self.beside is None:
            return Event()
        self.events.append(Late(self.beside))
        return self.events[-1]

    def swap(self, target, source, target_pages, source_pages, *, layout):
        assert self.beside is not None, "pages are swapped beside steps"
        self.beside.append(lambda: copy.kv_swap(target, source, target_pages, source_pages, layout=layout))
        return target


DEVICE = LateDevice()


@hookimpl
def core_device() -> Device:
    return DEVICE


@hookimpl
def core_kernels() -> list[Implementation]:
    rows = {"kv_layout": kv.kv_layout, "kv_write": kv.kv_write, "kv_gather": kv.kv_gather, "kv_swap": DEVICE.swap}
    return [Implementation(row, kernel, "late") for row, kernel in rows.items()]
