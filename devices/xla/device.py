"""A device of XLA's. Its libraries are behind `Lowering`, which is imported when the device is opened, and no sooner.

Core packs and reads tensors of the host. What stays on the device (weights, KV planes, the ids drawn last) goes there
by `keep`, and only compiled functions and `d2h` get at it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psutil

from core.errors import DeviceError
from core.plugin import Device, DeviceFacts, Event, Memory, ShapePolicy, Unavailable
from devices.xla.lowering import Lowering, Way, choose, lowering, versions

if TYPE_CHECKING:
    import torch

SHAPES = ShapePolicy(tokens=(8, 32, 256), seqs=(8, 32), blocks=(64, 512, 2048))


class XlaDevice(Device):
    """Device 0 of the default platform."""

    def __init__(self) -> None:
        self._opened: Lowering | None = None

    @property
    def _lowering(self) -> Lowering:
        assert self._opened is not None
        return self._opened

    def probe(self) -> DeviceFacts | Unavailable:
        """By what is installed alone."""
        installed = versions()
        way = choose(installed)
        if isinstance(way, Unavailable):
            return way
        return DeviceFacts(
            name="xla",
            torch_device_type="cpu",
            arch=", ".join(f"{name} {installed[name]}" for name in way.distributions),
            count=1,
            memory_bytes=psutil.virtual_memory().total,
            dtypes=("float32", "bfloat16"),
            host_memory=True,
            implicit=False,
            torch_extension=way.extension,
            shapes=SHAPES,
        )

    def open(self, index: int) -> torch.device:
        """Raises: DeviceError for an index other than 0."""
        if index != 0:
            raise DeviceError(f"xla device {index} is not supported: steps run on one device; use index 0")
        import torch

        way = choose(versions())
        assert isinstance(way, Way), way
        self._opened = lowering(way.extension)
        self._opened.open()
        return torch.device("cpu")

    def memory(self) -> Memory:
        """Where the device is the host processor, the machine's."""
        machine = psutil.virtual_memory()
        return self._lowering.memory() or Memory(machine.available, machine.total)

    def synchronize(self) -> None:
        self._lowering.synchronize()

    def keep(self, value: Any) -> Any:
        from devices.xla import tree

        leaves: list[torch.Tensor] = []
        structure = tree.take(value, leaves)
        return tree.put(structure, map(self._lowering.keep, leaves))

    def d2h(self, dst: torch.Tensor, src: torch.Tensor) -> Event:
        return self._lowering.arrival(dst, src) if self._lowering.holds(src) else super().d2h(dst, src)

    def compile(self, function: Callable[..., Any], key: tuple[Any, ...], given: tuple[int, ...]) -> Callable[..., Any]:
        return self._lowering.compiled(function, given)
