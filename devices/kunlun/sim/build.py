"""Builds the extension, once for each torch, Python and version of the sources, and imports it.

It lies in the user's cache folder (`$XDG_CACHE_HOME`, else `~/.cache`). Of processes that want it at once one builds,
and the others wait; a finished build is renamed into place. The compiler is g++, or what the environment variable CXX
names.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import torch
from torch.utils import cpp_extension

from core.errors import PluginError

_HERE = Path(__file__).parent
_NAME = "_kunlun_sim"
_FLAGS = ["-std=c++20", "-O1", "-g0", "-fPIC", "-fvisibility=hidden", f"-DTORCH_EXTENSION_NAME={_NAME}"]
_LIBRARIES = ["-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10"]


def load_extension() -> ModuleType:
    """The extension module, built if it is not there yet.

    Raises: PluginError when there is no compiler, or it fails.
    """
    library = _folder() / f"{_NAME}.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    with open(library.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _build(library)
    spec = importlib.util.spec_from_file_location(_NAME, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _sources() -> list[Path]:
    return sorted((_HERE / "glue").glob("*.cpp"))


def _folder() -> Path:
    """Where the build for this torch, this Python and these sources lies."""
    key = hashlib.sha256(f"{torch.__version__} {sysconfig.get_config_var('SOABI')} {_FLAGS}".encode())
    for path in [*sorted((_HERE / "engine").glob("*.h")), *sorted((_HERE / "glue").glob("*.h")), *_sources()]:
        key.update(path.name.encode() + path.read_bytes())
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "core" / "kunlun-sim" / key.hexdigest()[:24]


def _build(library: Path) -> None:
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    if shutil.which(compiler[0]) is None:
        raise PluginError(f"there is no {compiler[0]}, which the simulator is built with: install g++, or set CXX")
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        objects = [Path(folder) / f"{source.stem}.o" for source in _sources()]
        includes = [*cpp_extension.include_paths(), sysconfig.get_path("include")]
        flags = [*_FLAGS, *(f"-I{path}" for path in includes)]
        compilations = [
            [*compiler, *flags, "-c", str(source), "-o", str(target)]
            for source, target in zip(_sources(), objects, strict=True)
        ]
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            list(pool.map(_run, compilations))
        built = Path(folder) / library.name
        paths = [option for path in cpp_extension.library_paths() for option in (f"-L{path}", f"-Wl,-rpath,{path}")]
        _run([*compiler, "-shared", *map(str, objects), *paths, *_LIBRARIES, "-o", str(built)])
        built.rename(library)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join(done.stderr.strip().splitlines()[-20:])
        raise PluginError(f"the simulator cannot be built for torch {torch.__version__} with {command[0]}:\n{tail}")
