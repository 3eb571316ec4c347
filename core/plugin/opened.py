"""Opening the device that was chosen, under the patch rule: for engines and for whoever examines it, the same way."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from core.errors import DeviceError, PluginError
from core.kernels.row import Implementation
from core.plugin import patches
from core.plugin.device import Device
from core.plugin.facts import DeviceFacts
from core.plugin.loader import Candidate, explained


@dataclass(frozen=True)
class Opened:
    """A device that is open, with its kernels.

    replaced   what its `torch_extension` replaces of torch
    later      that its plugin was written for a later minor version of the contract; empty if it was not
    """

    device: Device
    where: torch.device
    facts: DeviceFacts
    implementations: tuple[Implementation, ...]
    replaced: tuple[str, ...]
    later: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """For people who read the plan."""
        return (*self.replaced, self.later) if self.later else self.replaced


def open_device(candidate: Candidate, index: int = 0) -> Opened:
    """Open the device and import its kernels. Call it on the device's launch thread.

    Raises: DeviceError when it cannot be started; PluginError when its kernels cannot be loaded, or it changes core or
    torch.
    """
    facts, device, plugin = candidate.facts, candidate.device, candidate.plugin
    assert isinstance(facts, DeviceFacts)
    assert device is not None
    assert plugin is not None
    watch = patches.Watch()
    with explained(DeviceError, f"device {candidate.name} {index} cannot be started"):
        where = device.open(index)
    what = f"the kernels of device {candidate.name} cannot be loaded"
    with explained(PluginError, f"{what} ({candidate.later})" if candidate.later else what):
        implementations = tuple(candidate.kernels())
    replaced = watch.check(candidate.name, plugin, facts.torch_extension)
    return Opened(device, where, facts, implementations, (*candidate.notes, *replaced), candidate.later)
