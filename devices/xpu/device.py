"""Intel GPUs as torch has them: streams, events, memory and collectives of torch.xpu. Refuses a torch without them.

Everything is launched on the current stream, in order; only what core launches in `aside` has a stream of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psutil

from core.errors import ConfigError, DeviceError
from core.plugin import Device, DeviceFacts, Event, Memory, Unavailable

if TYPE_CHECKING:
    import torch

OLDEST_TORCH = (2, 8)
"""The first one whose builds for Intel GPUs have xccl."""


class XpuEvent(Event):
    """The end of what the current stream was given so far."""

    def __init__(self) -> None:
        self._event = _xpu().Event()
        self._event.record()

    def wait(self) -> None:
        self._event.wait()

    def synchronize(self) -> None:
        self._event.synchronize()

    def done(self) -> bool:
        return bool(self._event.query())


class XpuDevice(Device):
    """One GPU, or one tile where the driver shows tiles as devices."""

    def probe(self) -> DeviceFacts | Unavailable:
        """What torch says of the first device: reading it starts torch's part for Intel GPUs, and nothing else."""
        import torch

        wanted = "install torch {}.{} or later, built for Intel GPUs".format(*OLDEST_TORCH)
        if not getattr(torch.version, "xpu", None):
            return Unavailable(f"torch {torch.__version__} was not built for Intel GPUs: {wanted}")
        if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST_TORCH:
            return Unavailable(f"torch {torch.__version__} is too old: {wanted}")
        count = _xpu().device_count()
        if not count:
            return Unavailable(
                "torch finds no Intel GPU: look at its driver and Level Zero, at who may open /dev/dri, "
                "and at ZE_AFFINITY_MASK"
            )
        found = _xpu().get_device_properties(0)
        return DeviceFacts(
            name="xpu",
            torch_device_type="xpu",
            arch=f"{found.name}, driver {found.driver_version}",
            count=count,
            memory_bytes=found.total_memory,
            dtypes=("bfloat16", "float16", "float32"),
            host_memory=_shares_memory(found),
            implicit=False,  # until a real one was certified
        )

    def open(self, index: int) -> torch.device:
        import torch

        _xpu().set_device(index)
        self._index = index
        self._beside = _xpu().Stream()
        return torch.device("xpu", index)

    def memory(self) -> Memory:
        """What the driver says is free, and what torch's allocator holds of it without use.

        Raises: DeviceError when the driver does not say what is free.
        """
        if _shares_memory(_xpu().get_device_properties(self._index)):  # the driver says nothing of theirs
            machine = psutil.virtual_memory()
            return Memory(machine.available, machine.total)
        try:
            free, total = _xpu().mem_get_info(self._index)
        except RuntimeError as error:
            # Source: the maintainers' answer in pytorch/pytorch, issue 159728.
            remedy = "update the driver, or set UR_L0_ENABLE_SYSMAN_ENV_DEFAULT=0"
            raise DeviceError(f"xpu {self._index} does not say how much memory is free ({error}): {remedy}") from error
        unused = _xpu().memory_reserved(self._index) - _xpu().memory_allocated(self._index)
        return Memory(free + unused, total)

    def synchronize(self) -> None:
        _xpu().synchronize()

    def host_empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Pinned, so that copies need not wait for the host."""
        import torch

        return torch.zeros(shape, dtype=dtype, pin_memory=True)

    def h2d(self, dst: torch.Tensor, src: torch.Tensor) -> Event:
        dst.copy_(src, non_blocking=src.is_pinned())
        return XpuEvent()

    def d2h(self, dst: torch.Tensor, src: torch.Tensor) -> Event:
        dst.copy_(src, non_blocking=dst.is_pinned())
        return XpuEvent()

    def record(self) -> Event:
        return XpuEvent()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """All of it on one stream of its own, so that it is in order with what was launched aside before."""
        self._beside.wait_stream(_xpu().current_stream())
        with _xpu().stream(self._beside):
            yield

    def collective_backend(self) -> str:
        """Raises: ConfigError when torch was built without it."""
        import torch
        import torch.distributed as dist

        if not dist.is_xccl_available():
            raise ConfigError(
                f"torch {torch.__version__} has no xccl, through which Intel GPUs meet: install a build that has it, "
                "or leave out tensor_parallel_size"
            )
        return "xccl"


def _xpu() -> Any:
    """torch.xpu, of which torch declares no types."""
    import torch

    return torch.xpu


def _shares_memory(properties: Any) -> bool:
    """Whether a GPU is a part of the processor. Not every torch says so."""
    return bool(getattr(properties, "is_integrated_gpu", False))
