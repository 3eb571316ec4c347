"""A Kunlun device: streams, events, copies and graphs. Everything that it asks of torch goes through `Vendor`.

How it works. Compute runs on torch's current stream. Copies to the device, copies to the host and what is launched
`aside` each have a stream of their own, so that none of them holds up another; events order them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from core.errors import DeviceError
from core.plugin import Device, DeviceFacts, Event, Memory, ShapePolicy, Unavailable
from devices.kunlun import vendor
from devices.kunlun.limits import COPY_ALIGN_BYTES
from devices.kunlun.vendor import EXTENSION, OPS, Simulated, Vendor

if TYPE_CHECKING:
    import torch

GRAPHS = "KUNLUN_GRAPHS"
BUCKETS = ShapePolicy(tokens=(8, 32, 256), seqs=(8, 32), blocks=(16, 128, 512))
"""Shapes of steps that are captured."""


class KunlunEvent(Event):
    """The end of what was launched on a stream. Holds what is copied until then."""

    def __init__(self, vendor: Vendor, held: tuple[torch.Tensor, ...] = ()) -> None:
        """Recorded on the current stream."""
        self._vendor, self._held = vendor, held
        self._event = vendor.event()
        self._event.record(vendor.current())

    def wait(self) -> None:
        self._vendor.current().wait_event(self._event)

    def synchronize(self) -> None:
        self._event.synchronize()

    def done(self) -> bool:
        return bool(self._event.query())


class KunlunDevice(Device):
    """One chip, of as many as the machine has."""

    def __init__(self) -> None:
        self._opened: Vendor | None = None

    def probe(self) -> DeviceFacts | Unavailable:
        found = vendor.find()
        if isinstance(found, Unavailable):
            return found
        if not found.count():
            return Unavailable(f"the vendor's module {OPS} is installed, and torch finds no chip: install its driver")
        simulated = isinstance(found, Simulated)
        return DeviceFacts(
            name="kunlun",
            torch_device_type=found.torch_type,
            arch=found.arch(),
            count=found.count(),
            memory_bytes=found.memory_bytes(),
            dtypes=("bfloat16", "float16", "float32"),
            implicit=not simulated,
            claims=() if simulated else (found.torch_type,),
            torch_extension=None if simulated else EXTENSION,
            shapes=BUCKETS if os.environ.get(GRAPHS) == "1" else ShapePolicy(),
        )

    @property
    def _vendor(self) -> Vendor:
        assert self._opened is not None
        return self._opened

    def open(self, index: int) -> torch.device:
        """Raises: DeviceError for an index that the machine does not have."""
        found = vendor.opened()
        if index >= found.count():
            raise DeviceError(f"kunlun device {index} does not exist: there are {found.count()}, from index 0 on")
        where = found.open(index)
        self._opened = found
        self._to_device, self._to_host, self._beside = (found.stream() for _ in range(3))
        return where

    def memory(self) -> Memory:
        return Memory(*self._vendor.free_and_total())

    def synchronize(self) -> None:
        self._vendor.synchronize()

    def host_empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Pinned, and zero."""
        import torch

        return torch.zeros(shape, dtype=dtype).pin_memory()

    def h2d(self, dst: torch.Tensor, src: torch.Tensor) -> Event:
        return self._copy(self._to_device, dst, src)

    def d2h(self, dst: torch.Tensor, src: torch.Tensor) -> Event:
        return self._copy(self._to_host, dst, src)

    def _copy(self, stream: Any, dst: torch.Tensor, src: torch.Tensor) -> Event:
        # The copy engine takes addresses that it can; the rest blocks.
        aligned = dst.data_ptr() % COPY_ALIGN_BYTES == 0 and src.data_ptr() % COPY_ALIGN_BYTES == 0
        with self._after_all_on(stream):
            if src.numel():  # memory of no bytes is neither here nor there
                dst.copy_(src, non_blocking=aligned)
            return self._recorded(dst, src)

    def record(self) -> Event:
        return self._recorded()

    def _recorded(self, *held: torch.Tensor) -> Event:
        return KunlunEvent(self._vendor, held)

    @contextmanager
    def aside(self) -> Iterator[None]:
        with self._after_all_on(self._beside):
            yield

    @contextmanager
    def _after_all_on(self, stream: Any) -> Iterator[None]:
        """What is launched inside runs on `stream`, after all that was launched on the current one."""
        before = self._recorded()
        with self._vendor.inside(stream):
            before.wait()
            yield

    def collective_backend(self) -> str:
        found = vendor.opened()
        found.register_collectives()
        return found.collectives

    def compile(self, function: Callable[..., Any], key: tuple[Any, ...], given: tuple[int, ...]) -> Callable[..., Any]:
        from devices.kunlun.graphs import Captured

        return Captured(self._vendor, function, given)
