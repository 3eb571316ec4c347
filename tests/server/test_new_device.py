"""`core new-device`: what it writes, and what it refuses."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from processes import run_core, run_here

from core.errors import ConfigError
from server.new_device.project import write_project

ROOT = Path(__file__).parent.parent.parent
TAKEN = ("cpu", "warp")


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """As far as it is looked at: a file."""
    path = tmp_path / "core-9.9-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("core/__init__.py", "")
    return path


def tool(name: str, *args: str, cwd: Path) -> None:
    command = [Path(sys.executable).parent / name, *args]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["x2", "mychip", "a_name_of_thirty_letters_in_all"[:30]])
def test_the_project_is_clean_and_named_throughout(name: str, wheel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    written = write_project(name, folder, wheel, TAKEN)
    assert written == sorted(path for path in folder.rglob("*") if path.is_file())
    texts = {path.relative_to(folder).as_posix(): path.read_text() for path in written if path.suffix != ".whl"}
    assert {f"core_{name}/plugin.py", f"core_{name}/kernels.py", ".github/workflows/certify.yml"} <= texts.keys()
    if name != "mychip":
        assert not [path for path, text in texts.items() if "mychip" in (path + text).lower()]
    assert not [path for path, text in texts.items() if "CORE_FILE" in text]
    tool("ruff", "check", ".", cwd=folder)
    tool("ruff", "format", "--check", ".", cwd=folder)
    project = tomllib.loads(texts["pyproject.toml"])
    assert project["project"]["entry-points"]["core.devices"] == {name: f"core_{name}.plugin"}
    marked = [found for text in texts.values() for found in re.findall(r"# REPLACE (\d) of 3: ", text)]
    assert sorted(marked) == ["1", "2", "3"]


def test_core_comes_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    write_project("x", folder, wheel, TAKEN)
    assert (folder / "wheels" / wheel.name).read_bytes() == wheel.read_bytes()
    needs = (folder / "requirements.txt").read_text().splitlines()
    assert f"./wheels/{wheel.name}[conformance,serve]" in needs
    assert not [need for need in needs if need.startswith("core")]
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == []
    assert "optional-dependencies" not in project


def test_or_from_the_source_tree(tmp_path: Path) -> None:
    written = write_project("x", tmp_path / "made", ROOT, TAKEN)
    assert not [path for path in written if "wheels" in path.parts]
    needs = (tmp_path / "made" / "requirements.txt").read_text()
    assert f"core[conformance,serve] @ {ROOT.as_uri()}\n" in needs


@pytest.mark.parametrize(
    "name", ["", "My", "2x", "a-b", "a.b", "../x", "class", "x" * 31, "größe", "x\n", "warp", "cpu"]
)
def test_names_that_will_not_do(name: str, wheel: Path, tmp_path: Path) -> None:
    words = "there is a device" if name in TAKEN else "cannot be the name of a device: use up to 30 of a-z"
    with pytest.raises(ConfigError, match=words):
        write_project(name, tmp_path / "made", wheel, TAKEN)
    assert not (tmp_path / "made").exists()


def test_nothing_is_written_over(wheel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="there is something already; name a folder that is new or empty"):
        write_project("x", folder, wheel, TAKEN)
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]
    with pytest.raises(ConfigError, match="there is something already"):
        write_project("x", folder / "mine.txt", wheel, TAKEN)
    with pytest.raises(ConfigError, match=r"mine.txt/below: it cannot be written \(.*\); name another folder"):
        write_project("x", folder / "mine.txt" / "below", wheel, TAKEN)
    (folder / "mine.txt").unlink()
    assert write_project("x", folder, wheel, TAKEN)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("core-9.9.whl", "there is no such file; give the wheel"),
        ("other-9.9-py3-none-any.whl", "it is not a wheel of core"),
        ("core-9.9.tar.gz", "it is not a wheel of core"),
        ("folder", "the folder has no pyproject.toml of core"),
        ("project", "the folder has no pyproject.toml of core"),
        ("broken", "the folder has no pyproject.toml of core"),
    ],
)
def test_a_core_that_cannot_be_installed(path: str, words: str, tmp_path: Path) -> None:
    for file in ("other-9.9-py3-none-any.whl", "core-9.9.tar.gz"):
        (tmp_path / file).touch()
    (tmp_path / "folder").mkdir()
    for folder, text in (("project", '[project]\nname = "other"\n'), ("broken", "[project\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigError, match=words):
        write_project("x", tmp_path / "made", tmp_path / path, TAKEN)
    assert not (tmp_path / "made").exists()


def test_the_command(wheel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    done = run_core("new-device", "warp", "--core", str(wheel), "--into", str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    shown = done.stdout.splitlines()
    assert str(folder / "core_warp" / "plugin.py") in shown
    assert shown[-1] == f"Next: cd {folder} && pip install -r requirements.txt && pytest"
    assert ast.parse((folder / "core_warp" / "plugin.py").read_text())
    for args, words in (
        (("warp", "--core", str(wheel), "--into", str(folder)), "there is something already"),
        (("cpu", "--core", str(wheel), "--into", str(tmp_path / "2")), "there is a device cpu already"),
        (("warp",), "Missing option '--core'"),
    ):
        done = run_here("new-device", *args)
        assert done.returncode == 2
        [line] = done.stderr.splitlines()
        assert words in line
