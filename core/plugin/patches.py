"""No patches: what a plugin may not do to core and torch, and how it is noticed.

Attributes of every loaded module of both, and of the classes defined there, are compared around loading a plugin and
around opening its device. Replacing an attribute of core is an error. Replacing one of torch is an error when the new
value comes from the plugin's own distribution; what the distribution named as its `torch_extension` replaces is
listed. Adding attributes is allowed: that is how torch registers backends.
"""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from importlib import metadata
from types import ModuleType

from core.errors import PluginError

_MISSING = object()
Attributes = dict[str, dict[str, object]]


def snapshot() -> Attributes:
    """Every attribute of core's and torch's loaded modules and of their classes, by owner and name."""
    return {owner: dict(names) for owner, names in _owners()}


def _owners() -> Iterator[tuple[str, Mapping[str, object]]]:
    for module_name, module in list(sys.modules.items()):
        if module_name.split(".", 1)[0] not in ("core", "torch") or not isinstance(module, ModuleType):
            continue
        names = vars(module)
        yield module_name, names
        for value in list(names.values()):
            # issubclass, because isinstance asks the value for its class, and lazy objects answer by doing something.
            if issubclass(type(value), type) and value.__module__ == module_name:
                yield f"{module_name}.{value.__qualname__}", vars(value)


def check(before: Attributes, plugin: str, module: ModuleType, torch_extension: str | None) -> list[str]:
    """Compare with now. Returns the replacements that are allowed but must be shown.

    Raises: PluginError naming the attribute that `plugin` may not replace.
    """
    changes = list(_changes(before))
    if not changes:
        return []
    own = _beside(_top_level(module.__name__))
    extension = _packages(torch_extension) if torch_extension else frozenset()
    listed = []
    for attribute, new in changes:
        source = _origin(new)
        if attribute.startswith("core."):
            raise PluginError(f"plugin {plugin} replaces {attribute}: a plugin may not change core; remove the patch")
        if source in extension:
            listed.append(f"{attribute} is replaced by {torch_extension}")
        elif source in own:
            raise PluginError(
                f"plugin {plugin} replaces {attribute}: register with torch instead, "
                "or name the distribution that does so as torch_extension"
            )
    return sorted(listed)


def _changes(before: Attributes) -> Iterator[tuple[str, object]]:
    """Attributes that were there before and have another value now, or none."""
    now = dict(_owners())
    for owner, old in before.items():
        names = now.get(owner, {})
        # Replacing a value keeps its place in the dict, and adding appends: usually all of this is one pass in C.
        if len(old) <= len(names) and all(map(operator.is_, old.values(), names.values())):
            continue
        for name, value in old.items():
            new = names.get(name, _MISSING)
            # Python keeps values of its own under such names; only functions there are anyone's to replace.
            kept = name.startswith("__") and not callable(value)
            if new is not value and not kept and not isinstance(value, ModuleType):
                yield f"{owner}.{name}", new


def _origin(value: object) -> str | None:
    """Top-level package that defines a value."""
    while isinstance(value, partial):
        value = value.func
    module = getattr(value, "__module__", None)
    if not isinstance(module, str):
        module = type(value).__module__
    return _top_level(module)


def _top_level(module: str) -> str:
    return module.split(".")[0]


def _packages(distribution: str) -> frozenset[str]:
    """Top-level packages that a distribution installs."""
    by_package = metadata.packages_distributions()
    return frozenset(name for name, owners in by_package.items() if _same(distribution) in map(_same, owners))


def _beside(package: str) -> frozenset[str]:
    """The packages of the distribution that installs `package`, itself included."""
    owners = metadata.packages_distributions().get(package, [])
    return frozenset({package}).union(*(_packages(owner) for owner in owners))


def _same(distribution: str) -> str:
    """The form in which names of one distribution are equal."""
    return re.sub(r"[-_.]+", "-", distribution).lower()
