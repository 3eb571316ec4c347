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
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from types import ModuleType

from core.errors import PluginError

_MISSING = object()
Owners = dict[str, Mapping[str, object]]
"""The attributes of a module and of each class defined there, by owner and name."""


@dataclass(frozen=True)
class _Seen:
    """A module as it was: its owners, which may have changed since, and copies of them, which have not."""

    module: ModuleType
    owners: Owners
    copies: Owners

    @staticmethod
    def now(name: str, module: ModuleType) -> _Seen:
        owners = dict(_owners(name, module))
        return _Seen(module, owners, {owner: dict(names) for owner, names in owners.items()})

    def is_still(self, module: ModuleType | None) -> bool:
        """That nothing was replaced or added. The usual case: one pass in C over each owner."""
        return self.module is module and all(
            len(old) == len(names) and all(map(operator.is_, old.values(), names.values()))
            for old, names in zip(self.copies.values(), self.owners.values(), strict=True)
        )


_last: list[Mapping[str, _Seen]] = [{}]
"""What the watch that looked last in this process saw: some 4 MB. In a list, because a name of core may not be given
another value. What is in it never changes, so that watches of several threads do not disturb each other."""


class Watch:
    """Every attribute of core's and torch's loaded modules and of their classes, as it was when last looked at.

    One watch serves many plugins one after the other: to look again costs a sixth of the first look in a process. A new
    watch begins with what the one before it saw, looks again, and forgets what changed in between.
    """

    def __init__(self) -> None:
        self._seen = dict(_last[0])
        self.look()

    def look(self) -> list[tuple[str, object]]:
        """Returns the attributes that the last look saw and that have another value now, or none."""
        modules = dict(_modules())
        changes: list[tuple[str, object]] = []
        for name in {**self._seen, **modules}:
            seen, module = self._seen.get(name), modules.get(name)
            if seen and seen.is_still(module):
                continue
            now = _Seen.now(name, module) if module else None
            if seen:
                changes += _replaced(seen.copies, now.owners if now else {})
            if now:
                self._seen[name] = now
            else:
                del self._seen[name]
        _last[0] = dict(self._seen)
        return changes

    def check(self, plugin: str, module: ModuleType, torch_extension: str | None) -> list[str]:
        """Judge what changed since the last look. Returns the replacements that are allowed but must be shown.

        Raises: PluginError naming the attribute that `plugin` may not replace.
        """
        changes = self.look()
        if not changes:
            return []
        own = _beside(_top_level(module.__name__))
        extension = _packages(torch_extension) if torch_extension else frozenset()
        listed = []
        for attribute, new in changes:
            source = _origin(new)
            if attribute.startswith("core."):
                remedy = "a plugin may not change core; remove the patch"
                raise PluginError(f"plugin {plugin} replaces {attribute}: {remedy}")
            if source in extension:
                listed.append(f"{attribute} is replaced by {torch_extension}")
            elif source in own:
                remedy = "register with torch instead, or name the distribution that does so as torch_extension"
                raise PluginError(f"plugin {plugin} replaces {attribute}: {remedy}")
        return sorted(listed)


def _modules() -> Iterator[tuple[str, ModuleType]]:
    for name, module in list(sys.modules.items()):
        if _top_level(name) in ("core", "torch") and isinstance(module, ModuleType):
            yield name, module


def _owners(module_name: str, module: ModuleType) -> Iterator[tuple[str, Mapping[str, object]]]:
    names = vars(module)
    yield module_name, names
    for value in list(names.values()):
        # issubclass, because isinstance asks the value for its class, and lazy objects answer by doing something.
        if issubclass(type(value), type) and value.__module__ == module_name:
            yield f"{module_name}.{value.__qualname__}", vars(value)


def _replaced(before: Owners, now: Owners) -> Iterator[tuple[str, object]]:
    """Attributes that were there before and have another value now, or none."""
    for owner, old in before.items():
        names = now.get(owner, {})
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
