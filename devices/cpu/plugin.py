"""The CPU plugin: the host processor, with compiled kernels and others made of torch's own operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.plugin import Device, DeviceFacts, hookimpl
from devices.cpu.device import CpuDevice

if TYPE_CHECKING:
    from core.kernels.row import Implementation

API = (1, 0)


@hookimpl
def core_device() -> Device:
    return CpuDevice()


@hookimpl
def core_kernels(facts: DeviceFacts) -> list[Implementation]:
    from devices.cpu.kernels import implementations

    return implementations(facts)
