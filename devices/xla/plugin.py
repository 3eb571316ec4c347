"""The XLA plugin: whatever XLA has a PJRT device for. See README.md beside this file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.plugin import Device, DeviceFacts, hookimpl
from devices.xla.device import XlaDevice

if TYPE_CHECKING:
    from core.kernels.row import Implementation

API = (1, 0)


@hookimpl
def core_device() -> Device:
    return XlaDevice()


@hookimpl
def core_kernels(facts: DeviceFacts) -> list[Implementation]:
    from devices.xla.kernels import implementations

    return implementations(facts)
