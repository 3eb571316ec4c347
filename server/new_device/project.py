"""A device plugin as a project of its own: the files of `template/`, with names put in.

Owns which files there are, and what they may be called. Refuses names that Python or core cannot take, folders that
hold something, and a core that is neither a wheel nor a source tree: by its name alone, core is never installed.
"""

from __future__ import annotations

import keyword
import re
import shutil
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from core.errors import ConfigError

_TEMPLATE = Path(__file__).parent / "template"

# Below `_TEMPLATE` -> in the project. What tools would read as their own here has .txt at its end.
_FILES = {
    "README.md": "README.md",
    "certify.yml": ".github/workflows/certify.yml",
    "gitignore.txt": ".gitignore",
    "init.py.txt": "core_mychip/__init__.py",
    "kernels.py.txt": "core_mychip/kernels.py",
    "mychip_test.py.txt": "tests/test_mychip.py",
    "plugin.py.txt": "core_mychip/plugin.py",
    "pyproject.toml.txt": "pyproject.toml",
    "requirements.txt": "requirements.txt",
}
_WHEELS = "wheels"
_EXTRAS = "conformance,serve"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,29}")


def write_project(name: str, folder: Path, core: Path, taken: Iterable[str]) -> list[Path]:
    """Write the project of device `name` into `folder`. Returns its files.

    folder   is made; it may be there if it is empty
    core     the wheel that core is installed from, which is copied, or its source tree, which is named
    taken    names of devices that there are

    Raises: ConfigError when one of these will not do; then nothing was written. Or when the disk refuses.
    """
    _check_name(name, taken)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--into {folder}: there is something already; name a folder that is new or empty")
    _check_core(core)
    names = {
        "core-mychip": distribution_name(name),
        "MyChip": "".join(part.capitalize() for part in name.split("_")),
        "mychip": name,
        "CORE_FILE": _requirement(core),
    }
    texts = {_filled(path, names): _filled((_TEMPLATE / kept).read_text(), names) for kept, path in _FILES.items()}
    try:
        return sorted(_write(folder, texts, core))
    except OSError as error:
        raise ConfigError(f"--into {folder}: it cannot be written ({error}); name another folder") from error


def _write(folder: Path, texts: Mapping[str, str], core: Path) -> Iterator[Path]:
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
        yield folder / path
    if core.is_file():
        (folder / _WHEELS).mkdir()
        yield Path(shutil.copy(core, folder / _WHEELS))


def distribution_name(device: str) -> str:
    """What the project's package is called."""
    return f"core-{device.replace('_', '-')}"


def _requirement(core: Path) -> str:
    """For pip, run in the project's folder."""
    if core.is_file():
        return f"./{_WHEELS}/{core.name}[{_EXTRAS}]"
    return f"core[{_EXTRAS}] @ {core.resolve().as_uri()}"


def _filled(text: str, names: Mapping[str, str]) -> str:
    """`text` with each name of the template replaced, the longest one where several begin."""
    return re.sub("|".join(names), lambda found: names[found.group()], text)


def _check_name(name: str, taken: Iterable[str]) -> None:
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise ConfigError(
            f"{name!r} cannot be the name of a device: use up to 30 of a-z, 0-9 and _, a letter first, "
            "and no word of Python's"
        )
    if name in taken:
        raise ConfigError(f"there is a device {name} already (`core devices` lists them): use another name")


def _check_core(core: Path) -> None:
    """Raises: ConfigError for what core cannot be installed from."""
    wanted = "give the wheel of core (core-*.whl) or its source tree"
    if core.is_dir():
        if _project_name(core / "pyproject.toml") != "core":
            raise ConfigError(f"--core {core}: the folder has no pyproject.toml of core; {wanted}")
    elif not core.is_file():
        raise ConfigError(f"--core {core}: there is no such file; {wanted}")
    elif core.suffix != ".whl" or core.name.split("-")[0] != "core":
        raise ConfigError(f"--core {core}: it is not a wheel of core; {wanted}")


def _project_name(project: Path) -> object:
    """As pyproject.toml has it; None where there is no such file, or none that can be read."""
    try:
        return tomllib.loads(project.read_text()).get("project", {}).get("name")
    except (OSError, ValueError):
        return None
