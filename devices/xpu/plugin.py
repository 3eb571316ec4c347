"""The XPU plugin: Intel GPUs, through torch.xpu. See README.md beside this file for what of it was run, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.plugin import Device, DeviceFacts, hookimpl
from devices.xpu.device import XpuDevice

if TYPE_CHECKING:
    from core.kernels.row import Implementation

API = (1, 0)


@hookimpl
def core_device() -> Device:
    return XpuDevice()


@hookimpl
def core_kernels(facts: DeviceFacts) -> list[Implementation]:
    from devices.xpu.kernels import implementations

    return implementations(facts)
