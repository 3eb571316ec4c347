"""Which plugin this is, to the byte: the name, version and hashes of the files of what is installed.

What a certificate says holds for the files that were examined, so both who writes one and who shows one ask here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import ModuleType

CERTIFICATES = "certificates"
"""Folder of a plugin's package where its vendor puts certificates; they speak about the other files, so it is not one
of them."""

_CORE = Path(__file__).parent.parent


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
    """Every file of a package but what Python and the machine make of it, and certificates."""
    return hashes(
        folder,
        (
            path
            for path in folder.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts and path.relative_to(folder).parts[0] != CERTIFICATES
        ),
    )


def core_digest() -> str:
    """One hash over the files of this core."""
    return digest_of(tree(_CORE))


def package_of(module: ModuleType) -> Path | None:
    """The folder of the package that a plugin's module is in; None for a module that stands alone."""
    assert module.__file__ is not None
    return Path(module.__file__).parent if "." in module.__name__ else None


def plugin_of(name: str, distribution_name: str, module: ModuleType) -> Plugin:
    """The plugin that was loaded as `module`."""
    folder = package_of(module)
    if folder is not None:
        files = tree(folder)
    else:
        assert module.__file__ is not None
        path = Path(module.__file__)
        files = {path.name: sha256(path)}
    return Plugin(name, distribution_name, _version(distribution_name), files)


def _version(name: str) -> str:
    try:
        return distribution(name).version
    except PackageNotFoundError:
        return "unknown"
