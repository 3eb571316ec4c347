# mypy: disable-error-code="empty-body"
"""The whole plugin contract, in one file.

A device plugin is a module, named by an entry point in group `core.devices`, with

    API = (1, 0)            # the contract it was written for, (major, minor)

and some of the hooks below, each marked with `@hookimpl` (from `core.plugin`). A model plugin is the
same in group `core.models`. The module must not import its kernel library: every installed plugin is
imported to be probed. Hooks run at start-up only; kernels are then plain callables.

An implementation may take fewer arguments than its hook declares. An unknown hook is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from core.kernels.row import Implementation
    from core.model.spec import ModelSpec, WeightsPackage
    from core.plugin.device import Device
    from core.plugin.facts import DeviceFacts

API = (1, 0)
"""The contract this core speaks. Plugins of this major version and of the one before are loaded.

A minor version adds what has a default, and nothing else. The plan tells of a plugin that was written for a later one.
"""

hookspec = pluggy.HookspecMarker("core")
hookimpl = pluggy.HookimplMarker("core")


@hookspec(firstresult=True)
def core_device() -> Device | None:
    """The kind of device this plugin serves, not yet opened. Called once, right after import."""


@hookspec
def core_kernels(facts: DeviceFacts) -> list[Implementation]:
    """The kernels this plugin supplies, best first where it has several for one row.

    Called once, after `Device.open`, for the chosen device only: import kernel libraries here. Rows without an
    implementation that takes what the model needs run on their reference, under the fallback policy.
    """


@hookspec
def core_models() -> list[ModelSpec]:
    """The model families this plugin describes. Called once, when a model is looked up."""


@hookspec
def core_weights() -> list[WeightsPackage]:
    """Short names for weights that come as installed packages. Called once, when a model is looked up."""
