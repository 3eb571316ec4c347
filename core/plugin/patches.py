"""No patches: what a plugin may not do to core and torch, and how it is noticed.

Attributes of every loaded module of both, and of the classes defined there, are compared around loading a plugin and
around opening its device. Replacing an attribute of core is an error. Replacing one of torch is an error when the new
value comes from the plugin's own distribution; what the distribution named as its `torch_extension` replaces is
listed. Adding attributes is allowed: that is how torch registers backends.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata
from types import ModuleType

from core.errors import PluginError

_MISSING = object()
Attributes = dict[tuple[str, str], object]


def snapshot() -> Attributes:
    """Every attribute of core's and torch's loaded modules and their classes, by owner and name."""
    return {(owner, name): value for owner, names in _owners() for name, value in list(names.items())}


def _owners() -> Iterator[tuple[str, dict[str, object]]]:
    for module_name, module in list(sys.modules.items()):
        if module_name.split(".")[0] not in ("core", "torch") or not isinstance(module, ModuleType):
            continue
        yield module_name, vars(module)
        for value in list(vars(module).values()):
            # issubclass, because isinstance asks the value for its class, and lazy objects answer by doing something.
            if issubclass(type(value), type) and value.__module__ == module_name:
                yield f"{module_name}.{value.__qualname__}", dict(vars(value))


def check(before: Attributes, plugin: str, module: ModuleType, torch_extension: str | None) -> list[str]:
    """Compare with now. Returns the replacements that are allowed but must be shown.

    Raises: PluginError naming the attribute that `plugin` may not replace.
    """
    after = snapshot()
    own = _top_level(module.__name__)
    extension = _packages(torch_extension) if torch_extension else frozenset()
    listed = []
    for (owner, name), old in before.items():
        new = after.get((owner, name), _MISSING)
        if new is old or name.startswith("__") or isinstance(old, ModuleType):
            continue
        attribute = f"{owner}.{name}"
        source = _origin(new)
        if owner.split(".")[0] == "core":
            if source == "core" and new is not _MISSING:
                continue  # core's own lazy state
            raise PluginError(f"plugin {plugin} replaces {attribute}: a plugin may not change core; remove the patch")
        if source in extension:
            listed.append(f"{attribute} is replaced by {torch_extension}")
        elif source == own:
            raise PluginError(
                f"plugin {plugin} replaces {attribute}: register with torch instead, "
                "or name the distribution that does so as torch_extension"
            )
    return sorted(listed)


def _origin(value: object) -> str | None:
    """Top-level package that defines a value."""
    module = getattr(value, "__module__", None)
    if not isinstance(module, str):
        module = type(value).__module__
    return _top_level(module)


def _top_level(module: str) -> str:
    return module.split(".")[0]


def _packages(distribution: str) -> frozenset[str]:
    """Top-level packages that a distribution installs."""
    by_package = metadata.packages_distributions()
    return frozenset(name for name, owners in by_package.items() if distribution in owners)
