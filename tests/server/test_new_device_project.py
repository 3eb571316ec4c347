"""A project of `core new-device`, for real: installed by pip beside core's wheel, tested, certified, and serving."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from generated import Environment, make_environment
from processes import run_core, serve

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return make_environment(tmp_path_factory.mktemp("generated"))


@pytest.fixture(scope="module")
def project(env: Environment) -> Path:
    """The project of device `warp`, installed as its README says."""
    folder = env.folder / "core-warp"
    done = run_core("new-device", "warp", "--core", str(env.wheel), "--into", str(folder))
    assert done.returncode == 0, done.stderr
    env.install("-r", "requirements.txt", cwd=folder)
    return folder


def test_it_is_found_with_the_core_of_the_wheel(env: Environment, project: Path) -> None:
    place = env.run("python", "-c", "import core; print(core.__file__)").strip()
    assert Path(place).is_relative_to(env.folder)
    env.run("core", "new-device", "weft", "--core", env.wheel, "--into", "again")
    assert (env.folder / "again" / "core_weft" / "plugin.py").is_file(), "the wheel has the template"
    found = {device["name"]: device for device in json.loads(env.run("core", "devices", "--json"))}
    assert found["warp"]["distribution"] == "core-warp"
    assert found["warp"]["arch"] == "the host processor, in place of warp"


def test_its_own_checks_pass(env: Environment, project: Path) -> None:
    """What its workflow runs before it certifies."""
    env.run("python", "-m", "ruff", "check", ".", cwd=project)
    assert "no issues found in 3 source files" in env.run("python", "-m", "mypy", cwd=project)
    assert "9 passed" in env.run("python", "-m", "pytest", "-q", cwd=project)


def test_it_is_certified(env: Environment, project: Path) -> None:
    shown = env.run("core", "certify", "--device", "warp", "--quick", "--out", "bundle")
    assert "PASSED, tier functional, level quick: bundle" in shown
    plan = json.loads(env.run("core", "plan", "smollm2", "--device", "warp", "--fallback", "allow", "--json"))
    assert {k["row"] for k in plan["kernels"] if k["provider"] == "warp"} == {"rms_norm"}
    rows = {row["name"]: row["value"] for row in plan["plan"]}
    assert rows["certificate"].startswith("PASSED at level quick")


def test_it_serves(env: Environment, project: Path) -> None:
    question = [{"role": "user", "content": "Name the capital of France."}]
    body = {"model": "smollm2", "messages": question, "temperature": 0, "max_tokens": 16}
    flags = ("smollm2", "--device", "warp", "--fallback", "allow", "--max-model-len", "512")
    with serve(env.folder, *flags, core=str(env.bin / "core")) as server:
        answer = server.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    assert "Paris" in answer.json()["choices"][0]["message"]["content"]
