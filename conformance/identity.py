"""Who is examined and by what: names, versions, and hashes of files."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from core import __version__
from core.errors import PluginError
from core.plugin import loader

HERE = Path(__file__).parent
_SHOWN = ("torch", "numpy", "safetensors", "gguf", "pluggy")


@dataclass(frozen=True)
class Plugin:
    """A device plugin as installed. `files` has the SHA-256 of each of its files."""

    name: str
    distribution: str
    version: str
    files: Mapping[str, str]

    @property
    def digest(self) -> str:
        return digest_of(self.files)


def sha256(path: Path) -> str:
    """Of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hashes(root: Path, paths: Iterable[Path]) -> dict[str, str]:
    """Path below `root` -> SHA-256, in order."""
    return {path.relative_to(root).as_posix(): sha256(path) for path in sorted(paths)}


def digest_of(files: Mapping[str, str]) -> str:
    """One hash over names and hashes of files."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def tree(folder: Path) -> dict[str, str]:
    """Every file of a package but what Python and the machine make of it."""
    return hashes(folder, (p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts))


def suite() -> dict[str, str]:
    """The suite: its version, and the hash of every file that decides."""
    core_files = tree(HERE.parent / "core")
    return {"version": __version__, "tree_sha256": digest_of(tree(HERE)), "core_sha256": digest_of(core_files)}


def plugin(name: str) -> Plugin:
    """The plugin that `--device name` means. Raises: PluginError when it is not installed."""
    for candidate in loader.discover():
        if candidate.name == name and candidate.plugin is not None:
            module = candidate.plugin
            assert module.__file__ is not None
            path = Path(module.__file__)
            alone = "." not in module.__name__
            files = {path.name: sha256(path)} if alone else tree(path.parent)
            return Plugin(name, candidate.distribution, _version(candidate.distribution), files)
    raise PluginError(f"device {name}: there is no such plugin; `core devices` lists what is installed")


def _version(name: str) -> str:
    try:
        return distribution(name).version
    except PackageNotFoundError:
        return "unknown"


def environment() -> dict[str, str]:
    """What else results may depend on."""
    found = {"python": sys.version.split()[0], "platform": platform.platform(), "machine": platform.machine()}
    for name in _SHOWN:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def root_seed(suite_digest: str, plugin_digest: str, nonce: str) -> bytes:
    """The seed of a run: with a nonce from whoever checks, nobody can compute results before."""
    return hashlib.sha256(f"{suite_digest}|{plugin_digest}|{nonce}".encode()).digest()
