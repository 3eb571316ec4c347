"""The folder of `--out`: results, tables and a picture of a measurement."""

from importlib.util import find_spec
from pathlib import Path


def make_folder(out: Path, results: str | None = None) -> None:
    """`results`: a file by which a folder is known that may be gone on with.

    Raises: ConfigError before minutes of work whose results could not be written."""
    from core.errors import ConfigError

    if find_spec("matplotlib") is None:
        raise ConfigError("the picture of --out needs matplotlib: pip install 'core[train]', or leave --out away")
    if results and (out / results).is_file():
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out {out} is there already and is no empty folder: name another one")
    out.mkdir(parents=True, exist_ok=True)
