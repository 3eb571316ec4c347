"""What the plugin stands on: the vendor's libraries on a real machine, or the simulator with its stand-in of them.

The only file in which the two differ. A `Vendor` has the ops by the vendor's names and what torch offers under the
device type: `cuda` on a real machine, where the vendor's torch pretends to be CUDA, and `kunlun` on the simulator.

Nothing of `Hardware` has run on hardware: it says what public sources show (README.md names them).
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

from core.plugin import Unavailable

if TYPE_CHECKING:
    import torch

OPS = "kunlun_ops"
SIMULATOR = "KUNLUN_SIM"
EXTENSION = "torch_xmlir"
"""The vendor's extension of torch: what makes its chips `cuda` devices. It must be imported before they are used."""


class Graph(Protocol):
    """Launches that were recorded, over the memory they were recorded with."""

    def capture(self) -> AbstractContextManager[Any]:
        """What is launched inside is recorded."""

    def replay(self) -> None:
        """Launch it again."""


class Vendor(Protocol):
    """Ops, and torch's streams, events and memory, of the device that is open."""

    torch_type: str
    collectives: str

    @property
    def ops(self) -> Any: ...
    def count(self) -> int: ...
    def memory_bytes(self) -> int: ...
    def arch(self) -> str: ...
    def open(self, index: int) -> torch.device: ...
    def free_and_total(self) -> tuple[int, int]: ...
    def synchronize(self) -> None: ...
    def stream(self) -> Any: ...
    def current(self) -> Any: ...
    def inside(self, stream: Any) -> AbstractContextManager[Any]: ...
    def event(self) -> Any: ...
    def graph(self) -> Graph: ...
    def register_collectives(self) -> None: ...


def find(environment: Mapping[str, str] = os.environ) -> Vendor | Unavailable:
    """By what is installed, and else by the environment; imports neither torch nor the ops."""
    if importlib.util.find_spec(OPS) is not None:
        return _hardware()
    options = environment.get(SIMULATOR)
    if options:
        return _simulated(options)
    return Unavailable(
        f"the vendor's module {OPS} is not installed: install the vendor's wheels; {SIMULATOR}=1 runs the simulator"
    )


def opened() -> Vendor:
    """The one that `find` found."""
    vendor = find()
    assert not isinstance(vendor, Unavailable), vendor
    return vendor


@cache
def _hardware() -> Vendor:
    return Hardware()


@cache
def _simulated(options: str) -> Vendor:
    return Simulated(options)


class Hardware:
    """The vendor's libraries. Unverified on hardware."""

    torch_type = "cuda"
    collectives = "nccl"  # BKCL behind it

    ops: Any = None

    def count(self) -> int:
        return int(self._cuda.device_count())

    def memory_bytes(self) -> int:
        return int(self._cuda.get_device_properties(0).total_memory)

    def arch(self) -> str:
        return f"{self._cuda.get_device_name(0)} (unverified on hardware)"

    @property
    def _cuda(self) -> Any:
        import torch

        return torch.cuda

    def open(self, index: int) -> torch.device:
        import torch

        importlib.import_module(EXTENSION)
        ops = importlib.import_module(OPS)
        # Some of the ops are attributes of the module, others are registered with torch.
        self.ops = SimpleNamespace(**vars(ops), rotary_embedding=torch.ops._C.rotary_embedding)
        torch.cuda.set_device(index)
        return torch.device("cuda", index)

    def free_and_total(self) -> tuple[int, int]:
        free, total = self._cuda.mem_get_info()
        return int(free), int(total)

    def synchronize(self) -> None:
        self._cuda.synchronize()

    def stream(self) -> Any:
        return self._cuda.Stream()

    def current(self) -> Any:
        return self._cuda.current_stream()

    def inside(self, stream: Any) -> AbstractContextManager[Any]:
        entered: AbstractContextManager[Any] = self._cuda.stream(stream)
        return entered

    def event(self) -> Any:
        return self._cuda.Event()

    def graph(self) -> Graph:
        return _CudaGraph()

    def register_collectives(self) -> None:
        """The vendor's torch has them under the name it pretends to."""


class _CudaGraph:
    """`Graph` by torch.cuda. Unverified on hardware."""

    def __init__(self) -> None:
        import torch

        self._cuda: Any = torch.cuda
        self._graph = self._cuda.CUDAGraph()

    def capture(self) -> AbstractContextManager[Any]:
        entered: AbstractContextManager[Any] = self._cuda.graph(self._graph)
        return entered

    def replay(self) -> None:
        self._graph.replay()


class Simulated:
    """The simulator, with options as text (`devices.kunlun.sim`)."""

    torch_type = "kunlun"
    collectives = "bkcl"

    _running: Simulated | None = None
    """Whose machine was started: engines of one process may come and go on it."""

    def __init__(self, options: str) -> None:
        from devices.kunlun import sim

        self._sim: Any = sim
        self._chip = sim.Chip.parse(options)
        self._index = 0

    @property
    def ops(self) -> Any:
        from devices.kunlun.sim import vendor

        return vendor

    def count(self) -> int:
        return int(self._chip.count)

    def memory_bytes(self) -> int:
        return int(self._chip.memory_bytes)

    def arch(self) -> str:
        return "simulated"

    @property
    def _device(self) -> torch.device:
        import torch

        return torch.device(self.torch_type, self._index)

    def open(self, index: int) -> torch.device:
        import torch

        if Simulated._running is not self:
            self._sim.start(self._chip)
            Simulated._running = self
        self._index = index
        torch.accelerator.set_device_index(index)
        return self._device

    def free_and_total(self) -> tuple[int, int]:
        import torch

        free, total = torch.accelerator.get_memory_info(self._index)
        return free, total

    def synchronize(self) -> None:
        import torch

        torch.accelerator.synchronize(self._index)

    def stream(self) -> Any:
        import torch

        return torch.Stream(device=self._device)

    def current(self) -> Any:
        import torch

        return torch.accelerator.current_stream(self._index)

    def inside(self, stream: Any) -> AbstractContextManager[Any]:
        entered: AbstractContextManager[Any] = stream
        return entered

    def event(self) -> Any:
        import torch

        return torch.Event(device=self._device)

    def graph(self) -> Graph:
        self.ops.Declared.by_page = True
        made: Graph = self._sim.Graph()
        return made

    def register_collectives(self) -> None:
        from devices.kunlun.sim.vendor import bkcl

        bkcl.register(self.collectives, self.torch_type)
