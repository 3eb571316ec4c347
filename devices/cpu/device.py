"""The host processor as a device. Imports torch only when it is opened."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from core.errors import ConfigError, DeviceError
from core.plugin import Device, DeviceFacts, Memory, Unavailable
from devices.cpu import machine
from devices.cpu.heap import mapped_apart
from devices.cpu.native.library import find_native

if TYPE_CHECKING:
    import torch

    from devices.cpu.native.record import Arena

OLDEST_TORCH = (2, 5)
REPLAYED_TOKENS = 64
"""In larger steps the host's part is small, and their results would take much memory."""


STEP_TOKENS = 768
"""What larger steps compute between kernels leaves the caches, and is mapped anew by each of them (`devices.cpu.heap`):
prompts of 1024 and 2048 tokens took a tenth less time in steps of 768 than in steps of 2048."""


class CpuDevice(Device):
    """All processors that this process may use, as one device."""

    def __init__(self) -> None:
        self._arenas: dict[str, Arena] = {}

    def probe(self) -> DeviceFacts | Unavailable:
        """What the machine has, or what is wrong with the installed torch."""
        try:
            installed = version("torch")
        except PackageNotFoundError:
            return Unavailable("torch is not installed: install the extra 'cpu' of this package")
        if _release(installed) < OLDEST_TORCH:
            oldest = ".".join(map(str, OLDEST_TORCH))
            return Unavailable(f"torch {installed} is older than {oldest}: install torch {oldest} or later")
        try:
            native = find_native()
        except ConfigError as error:
            return Unavailable(str(error))
        sets = machine.instruction_sets()
        # Without instructions for it, bfloat16 is emulated, and slower than float32.
        fast_bf16 = machine.BF16_SETS.intersection(sets)
        return DeviceFacts(
            name="cpu",
            torch_device_type="cpu",
            arch=f"{machine.model_name()} ({', '.join(sets) or 'instruction sets unknown'}); {native.describe()}",
            count=1,
            memory_bytes=machine.memory_bytes()[1],
            dtypes=("bfloat16", "float32", "float16") if fast_bf16 else ("float32", "bfloat16", "float16"),
            host_memory=True,
            accelerator=False,
            replayed_tokens=REPLAYED_TOKENS if native.variant else 0,
            step_tokens=STEP_TOKENS,
            max_depth=0,
        )

    def open(self, index: int) -> torch.device:
        """Take every usable processor for torch, or OMP_NUM_THREADS. Raises: DeviceError for an index other than 0."""
        if index != 0:
            raise DeviceError(f"cpu device {index} does not exist: there is one, of all processors; use index 0")
        import torch

        torch.set_num_threads(machine.num_threads())
        return torch.device("cpu")

    def memory(self) -> Memory:
        return Memory(*machine.memory_bytes())

    def loading(self) -> AbstractContextManager[None]:
        return mapped_apart()

    def compile(self, function: Callable[..., Any], key: tuple[Any, ...], given: tuple[int, ...]) -> Callable[..., Any]:
        """Recordings of one half of a step share their memory: the other half reads what one gives."""
        from devices.cpu.native.record import Arena, Recorded

        return Recorded(function, self._arenas.setdefault(key[0], Arena()))

    def synchronize(self) -> None:
        """Nothing to wait for: a call of torch on the CPU returns when its work is done."""


def _release(text: str) -> tuple[int, ...]:
    """The first two numbers of a version such as 2.13.0+cpu."""
    return tuple(int(part) for part in text.split("+")[0].split(".")[:2])
