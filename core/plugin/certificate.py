"""Which certificates the device in use has. They are found, compared with what is installed, and shown.

`core certify` keeps what it makes in the user's folder ($CORE_CERTIFICATES, else core/certificates below
$XDG_DATA_HOME or ~/.local/share); a vendor ships his in the folder `certificates` of the plugin's package. One holds
for the chip, the plugin's files and the core that were examined, and for nothing else. Whether its word is good is
not judged here: `core verify` does that, with the bundle.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from core.plugin.facts import DeviceFacts
from core.plugin.identity import CERTIFICATES, Plugin, core_digest, package_of, plugin_of
from core.plugin.loader import Candidate

_PLACE = "CORE_CERTIFICATES"


class _Suite(msgspec.Struct, frozen=True):
    version: str
    core_sha256: str


class _Plugin(msgspec.Struct, frozen=True):
    files: dict[str, str]


class _Device(msgspec.Struct, frozen=True):
    name: str
    arch: str


class _Counts(msgspec.Struct, frozen=True):
    passed: int


class _Predicate(msgspec.Struct, frozen=True):
    result: str
    level: str
    tier: str
    suite: _Suite
    plugin: _Plugin
    device: _Device
    counts: _Counts
    finished: str

    def __str__(self) -> str:
        return f"{self.result} at level {self.level}, tier {self.tier}, {self.counts.passed} cases, {self.day}"

    @property
    def day(self) -> str:
        return self.finished[:10]

    def other(self, facts: DeviceFacts, plugin: Plugin, core: str) -> str:
        """What it was made for instead of what is here; empty when it holds."""
        if self.device.arch != facts.arch:
            return f"another chip ({self.device.arch})"
        mine, its = plugin.files, self.plugin.files
        changed = sorted(name for name in {*mine, *its} if mine.get(name) != its.get(name))
        if changed:
            return f"other files of the plugin ({changed[0]}{' and more' if len(changed) > 1 else ''})"
        return f"another core ({self.suite.version})" if self.suite.core_sha256 != core else ""


class _Statement(msgspec.Struct, frozen=True):
    predicate: _Predicate


_DECODER = msgspec.json.Decoder(_Statement)


def keep(device: str, level: str, data: bytes) -> Path:
    """Put a certificate where `status` finds it, in place of the one of this device and level. Returns its path."""
    path = _users() / device / f"{level}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def status(candidate: Candidate) -> str:
    """The certificates that hold for a device that was chosen, newest first; or why none does. For people."""
    facts, module = candidate.facts, candidate.plugin
    assert isinstance(facts, DeviceFacts)
    assert module is not None
    shipped = package_of(module)
    folders = [_users() / candidate.name, *([shipped / CERTIFICATES] if shipped else [])]
    found = sorted(_read(folders, candidate.name), key=lambda one: one.finished, reverse=True)
    if not found:
        return f"none; core certify --device {candidate.name} makes one"
    plugin, core = plugin_of(candidate.name, candidate.distribution, module), core_digest()
    others = [one.other(facts, plugin, core) for one in found]
    if all(others):
        return f"none that holds: the one of {found[0].day} is for {others[0]}"
    return "; ".join(str(one) for one, other in zip(found, others, strict=True) if not other)


def _users() -> Path:
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(os.environ.get(_PLACE) or Path(data) / "core" / "certificates")


def _read(folders: list[Path], device: str) -> Iterator[_Predicate]:
    """Of this device. What cannot be read is of another version of certificates, which does not hold here."""
    for folder in folders:
        for path in sorted(folder.glob("*.json")):
            try:
                predicate = _DECODER.decode(path.read_bytes()).predicate
            except msgspec.DecodeError:
                continue
            if predicate.device.name == device:
                yield predicate
