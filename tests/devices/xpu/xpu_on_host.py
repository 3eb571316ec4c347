"""The XPU device on a machine without an Intel GPU, as a plugin: what needs one is taken from the host.

Whoever uses it lets torch.xpu have the streams and events of torch.cpu first: nothing is behind these.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from core.plugin import Device, DeviceFacts, Memory, hookimpl
from devices.xpu.device import XpuDevice
from devices.xpu.kernels import implementations

API = (1, 0)
FACTS = DeviceFacts("xpu", "xpu", "Arc", 1, 1 << 30, ("bfloat16", "float16", "float32"), implicit=False)


class XpuOnHost(XpuDevice):
    def probe(self) -> DeviceFacts:
        return replace(FACTS, name="xpu_on_host", torch_device_type="cpu", host_memory=True)

    def open(self, index: int) -> torch.device:
        super().open(index)
        return torch.device("cpu")

    def memory(self) -> Memory:
        return Memory(1 << 28, 1 << 30)

    def host_empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)


@hookimpl
def core_device() -> Device:
    return XpuOnHost()


core_kernels = hookimpl(lambda facts: implementations(facts))
