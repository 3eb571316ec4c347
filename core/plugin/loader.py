"""Finding plugins, and choosing the device.

Every installed plugin is imported and probed, and each reason why one cannot serve is kept: a plugin that fails is
shown by `core devices`, and stops the process only when it was asked for by name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from importlib import metadata
from math import inf
from types import ModuleType
from typing import Any

import pluggy

from core.errors import ConfigError, CoreError, PluginError
from core.model.spec import ModelSpec, WeightsPackage
from core.plugin import hooks, patches
from core.plugin.device import Device
from core.plugin.facts import DTYPES, DeviceFacts, Unavailable

DEVICES = "core.devices"
MODELS = "core.models"
_REASON_CHARS = 500


@dataclass(frozen=True)
class Candidate:
    """One device plugin as found: its facts, or why it cannot serve.

    patched   it changed core or torch, so nothing may run in this process
    """

    name: str
    distribution: str
    facts: DeviceFacts | Unavailable
    plugin: ModuleType | None = None
    device: Device | None = None
    notes: tuple[str, ...] = ()
    patched: bool = False

    @property
    def later(self) -> str:
        """That it was written for a later minor version than this core speaks; empty if it was not."""
        return _later(self.name, self.plugin)

    def kernels(self) -> list[Any]:
        """The plugin's implementations. Imports its kernel library."""
        assert self.plugin is not None
        found = _hooks(self.name, self.plugin).hook.core_kernels(facts=self.facts)
        return [implementation for group in found for implementation in group]


def discover() -> list[Candidate]:
    """Import and probe every device plugin. Never raises for a plugin that fails."""
    with suppress(ImportError):  # which _load meets again, and says of each plugin
        import torch  # noqa: F401  loaded first, so that what a plugin changes in it is seen
    watch = patches.Watch()
    return [_probe(point, watch) for point in _points(DEVICES)]


def choose(candidates: Iterable[Candidate], asked: str | None) -> Candidate:
    """The device to use.

    Asked for by name: that one. Else the one accelerator that is there, else the host processor.

    Raises: ConfigError when there is none or more than one; PluginError when the one asked for is broken, or any
    changed core or torch.
    """
    found = list(candidates)
    for candidate in found:
        if candidate.patched:
            assert isinstance(candidate.facts, Unavailable)
            raise PluginError(f"{candidate.facts.reason}; until then, uninstall {candidate.distribution}")
    if asked is not None:
        return _by_name(found, asked)
    live = [c for c in found if isinstance(c.facts, DeviceFacts) and c.facts.implicit]
    claimed = {kind for c in live if isinstance(c.facts, DeviceFacts) for kind in c.facts.claims}
    accelerators = [c for c in live if _facts(c).accelerator and c.name not in claimed]
    if len(accelerators) > 1:
        names = " and ".join(c.name for c in accelerators)
        raise ConfigError(f"devices {names} are both here: choose with --device {accelerators[0].name}, for example")
    usable = accelerators or [c for c in live if not _facts(c).accelerator]
    if not usable:
        reasons = "; ".join(f"{c.name}: {c.facts.reason}" for c in found if isinstance(c.facts, Unavailable))
        raise ConfigError(f"no device is available: {reasons or 'no device plugin is installed; install core[cpu]'}")
    return usable[0]


def _facts(candidate: Candidate) -> DeviceFacts:
    assert isinstance(candidate.facts, DeviceFacts)
    return candidate.facts


def _by_name(found: list[Candidate], asked: str) -> Candidate:
    for candidate in found:
        if candidate.name == asked:
            if isinstance(candidate.facts, Unavailable):
                raise PluginError(f"device {asked} cannot be used: {candidate.facts.reason}")
            return candidate
    names = ", ".join(c.name for c in found)
    raise ConfigError(f"device {asked} is not known: choose among {names}, or install the plugin that provides it")


def device_names() -> list[str]:
    """Of every installed device plugin, none of which is imported."""
    return [point.name for point in _points(DEVICES)]


def _points(group: str) -> list[metadata.EntryPoint]:
    return sorted(metadata.entry_points(group=group), key=lambda point: point.name)


def _probe(point: metadata.EntryPoint, watch: patches.Watch) -> Candidate:
    distribution = point.dist.name if point.dist else "?"
    try:
        return _load(point, distribution, watch)
    except (Exception, SystemExit) as error:  # noqa: BLE001  a plugin may fail in any way; the reason is kept and shown
        watch.look()  # what this one changed is not the next one's doing
        reason = str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"
        if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "core":
            reason += f"; this core speaks API {_version(hooks.API)}: update core, or take the plugin's release for it"
        elif later := _later(point.name, sys.modules.get(point.module)):
            reason += f"; {later}"
        return Candidate(point.name, distribution, Unavailable(" ".join(reason.split())[:_REASON_CHARS]))


def _load(point: metadata.EntryPoint, distribution: str, watch: patches.Watch) -> Candidate:
    """Import a plugin and probe its device, under the patch rule."""
    import torch  # noqa: F401  no device does without

    plugin = point.load()
    if not isinstance(plugin, ModuleType):
        raise PluginError(f"entry point {point.name} names {point.value}: it must name a module")
    check_api(point.name, getattr(plugin, "API", None))
    device = _hooks(point.name, plugin).hook.core_device()
    if not isinstance(device, Device):
        raise PluginError(f"plugin {point.name} has no core_device hook that returns a Device")
    facts = device.probe()
    if not isinstance(facts, Unavailable):
        _check_facts(point.name, facts)
    extension = facts.torch_extension if isinstance(facts, DeviceFacts) else None
    try:
        notes = watch.check(point.name, plugin, extension)
    except PluginError as error:
        return Candidate(point.name, distribution, Unavailable(str(error)), patched=True)
    return Candidate(point.name, distribution, facts, plugin, device, tuple(notes))


def _check_facts(name: str, facts: object) -> None:
    """Raises PluginError for facts that nothing could be decided from."""
    if not isinstance(facts, DeviceFacts):
        raise PluginError(f"plugin {name}: probe returned {facts!r}: it must return DeviceFacts or Unavailable")
    buckets = (facts.shapes.tokens, facts.shapes.seqs, facts.shapes.blocks)
    peaks = [peak for peak in astuple(facts.peaks) if peak is not None]
    ascending = all(list(sizes) == sorted({s for s in sizes if s > 0}) for sizes in buckets)
    for field, value, right, wanted in (
        ("name", facts.name, facts.name == name, f"{name}, as its entry point is"),
        ("count", facts.count, facts.count >= 1, "at least 1"),
        ("dtypes", facts.dtypes, facts.dtypes and set(facts.dtypes) <= set(DTYPES), f"some of {', '.join(DTYPES)}"),
        ("shapes", facts.shapes, ascending, "sizes above 0 in ascending order"),
        ("max_depth", facts.max_depth, facts.max_depth in (0, 1), "0 or 1"),
        ("peaks", facts.peaks, all(0 < peak < inf for peak in peaks), "above 0 each, or None"),
    ):
        if not right:
            raise PluginError(f"plugin {name} states {field} = {value!r}: it must be {wanted}")


@contextmanager
def explained(kind: type[CoreError], what: str) -> Iterator[None]:
    """Whatever a plugin raises within becomes a `kind` of one line: "`what`: the error"."""
    try:
        yield
    except CoreError:
        raise
    except Exception as error:
        raise kind(f"{what}: {type(error).__name__}: {error}") from error


def check_api(name: str, api: object) -> None:
    """Raises PluginError when a plugin was written for a contract that this core does not speak."""
    match api:
        case (int(major), int(_)):
            pass
        case _:
            raise PluginError(f"plugin {name} declares API = {api!r}: it must be (major, minor), such as {hooks.API}")
    if major not in (hooks.API[0], hooks.API[0] - 1):
        remedy = "update core" if major > hooks.API[0] else "update the plugin"
        raise PluginError(f"plugin {name} was written for API {major}, and this core speaks {hooks.API[0]}: {remedy}")


def _later(name: str, plugin: ModuleType | None) -> str:
    """See `Candidate.later`. A minor version only adds, so such a plugin is loaded; but it may use what is not here."""
    match getattr(plugin, "API", None):
        case (int(major), int(minor)) if major == hooks.API[0] and minor > hooks.API[1]:
            return (
                f"plugin {name} was written for API {major}.{minor}, and this core speaks {_version(hooks.API)}: "
                "update core for what came later"
            )
    return ""


def _version(api: tuple[int, int]) -> str:
    return f"{api[0]}.{api[1]}"


def _hooks(name: str, plugin: ModuleType) -> pluggy.PluginManager:
    """A plugin's hooks, alone. Unknown hooks and wrong arguments are errors."""
    hub = pluggy.PluginManager("core")
    hub.add_hookspecs(hooks)
    try:
        hub.register(plugin, name)
        hub.check_pending()
    except pluggy.PluginValidationError as error:
        raise PluginError(f"plugin {name}: {error}") from error
    return hub


def _model_plugins() -> list[pluggy.PluginManager]:
    loaded = []
    for point in _points(MODELS):
        distribution = point.dist.name if point.dist else "?"
        with explained(PluginError, f"model plugin {point.name} cannot be loaded, update or uninstall {distribution}"):
            plugin = point.load()
        check_api(point.name, getattr(plugin, "API", None))
        loaded.append(_hooks(point.name, plugin))
    return loaded


def model_specs() -> dict[str, ModelSpec]:
    """Architecture -> family, of every installed model plugin. Raises PluginError when two claim the same one."""
    specs: dict[str, ModelSpec] = {}
    for hub in _model_plugins():
        for group in hub.hook.core_models():
            for spec in group:
                for architecture in spec.architectures:
                    if architecture in specs:
                        raise PluginError(f"architecture {architecture} is described twice: remove one of the plugins")
                    specs[architecture] = spec
    return specs


def weights_packages() -> list[WeightsPackage]:
    """Every known alias of an installed weights package."""
    return [package for hub in _model_plugins() for group in hub.hook.core_weights() for package in group]
