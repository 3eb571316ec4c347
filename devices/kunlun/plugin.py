"""The Kunlun plugin: Baidu's chips through the vendor's own ops, or their simulator. See README.md beside this file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.plugin import Device, DeviceFacts, hookimpl
from devices.kunlun.device import KunlunDevice

if TYPE_CHECKING:
    from core.kernels.row import Implementation

API = (1, 0)


@hookimpl
def core_device() -> Device:
    return KunlunDevice()


@hookimpl
def core_kernels(facts: DeviceFacts) -> list[Implementation]:
    from devices.kunlun.kernels import implementations
    from devices.kunlun.vendor import opened

    return implementations(facts, opened())
