"""Registers the simulated chip as torch's PrivateUse1 backend "kunlun", and starts machines of it."""

from __future__ import annotations

import atexit
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import torch
from torch.utils.backend_registration import generate_methods_for_privateuse1_backend, rename_privateuse1_backend

from core.errors import DeviceError, PluginError
from devices.kunlun.sim.build import load_extension
from devices.kunlun.sim.chip import Chip, parse_schedule

NAME = "kunlun"
_extension: ModuleType | None = None


class SimulatedFault(DeviceError):
    """The program did what the simulated chip cannot do."""


class RaceError(SimulatedFault):
    """The program left the order of two accesses to the same memory to chance."""


class _Namespace(ModuleType):
    """`torch.kunlun`: what torch asks of a backend's own module."""

    def is_available(self) -> bool:
        return self.device_count() > 0

    def is_initialized(self) -> bool:
        return self.device_count() > 0

    def device_count(self) -> int:
        return _Started.chip.count if _Started.chip else 0

    def current_device(self) -> int:
        return torch.accelerator.current_device_index()

    def set_device(self, index: int) -> None:
        torch.accelerator.set_device_index(index)

    def device(self, index: Any) -> AbstractContextManager[Any]:
        """Within, this device is the current one."""
        return torch.accelerator.device_index(index if isinstance(index, int) else torch.device(index).index or 0)

    def synchronize(self, device: Any = None) -> None:
        torch.accelerator.synchronize(device)

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """Bytes that are free, and in all."""
        free, total = torch.accelerator.get_memory_info(device)
        return free, total

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def manual_seed_all(self, seed: int) -> None:
        """Random numbers come from the host's generator, which torch.manual_seed seeds."""

    def _is_in_bad_fork(self) -> bool:
        return False


def extension() -> ModuleType:
    """The built extension. Raises: PluginError before `load`."""
    if _extension is None:
        raise PluginError("the simulator is not loaded: call devices.kunlun.sim.load first")
    return _extension


def load() -> None:
    """Build what is not built yet, and register the backend. Idempotent.

    Raises: PluginError without a compiler, or when another backend holds torch's one place for such.
    """
    global _extension
    if _extension is not None:
        return
    held = torch.utils.backend_registration._privateuse1_backend_name
    if held not in ("privateuseone", NAME):
        raise PluginError(f"torch's PrivateUse1 backend is already {held}: the simulator needs a process of its own")
    module = load_extension()
    register: Any = torch._register_device_module
    rename_privateuse1_backend(NAME)
    register(NAME, _Namespace(f"torch.{NAME}"))
    generate_methods_for_privateuse1_backend(for_storage=True)
    module.set_errors(RaceError, SimulatedFault)
    atexit.register(module.finish)
    _extension = module


def start(chip: Chip) -> None:
    """Start a machine of such chips, in place of the one before.

    Raises: SimulatedFault while tensors of the one before live.
    """
    load()
    extension().start(
        extension().Chip(
            NAME, chip.count, chip.memory_bytes, chip.pinned_bytes, chip.copy_align_bytes, chip.flops_per_s,
            chip.bytes_per_s, chip.pcie_bytes_per_s, chip.link_bytes_per_s, chip.strict,
        )
    )  # fmt: skip
    _Started.chip = chip
    set_schedule(chip.schedule)


class _Started:
    chip: Chip | None = None


def started() -> Chip:
    """The chip that was started. Raises: DeviceError before `start`."""
    if _Started.chip is None:
        raise SimulatedFault("the simulator is not started: call devices.kunlun.sim.start first")
    return _Started.chip


def set_schedule(text: str) -> None:
    """When tasks run from now on: "eager", "lazy" or "seed:N". Raises: ConfigError for another."""
    extension().set_schedule(*parse_schedule(text))
