"""Kernels that crash, hang and raise cost their case and nothing else; and a run that was cut off goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conformance.case import Result
from conformance.certificate import issue
from conformance.certificate.records import Declared
from conformance.certify import Order, certify
from conformance.child import Setting, Task
from conformance.declare import declare
from conformance.run import run
from conformance.target import open_target
from core.errors import ConfigError, DeviceError
from tests.conformance.test_pytest_plugin import ONLY_NORM
from tests.plugins import install_plugin

BROKEN = ONLY_NORM.replace(
    "    return w * x",
    """    import os, time
    if x.shape == (7, 577):
        os._exit(3)
    if x.shape == (33, 2880):
        time.sleep(60)
    if x.shape[1] == 1:
        raise RuntimeError("no such size")
    return w * x""",
).replace("EPS", "eps")


def norms(level: str = "kernel") -> list[Declared]:
    return [d for d in declare(open_target("chip"), level, "rms_norm/normal/*") if not d.unsupported]


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_plugin(monkeypatch, tmp_path / "site", "chip", BROKEN)


@pytest.fixture
def right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_plugin(monkeypatch, tmp_path / "site", "chip", ONLY_NORM.replace("EPS", "eps"))


def run_all(tasks: list[Task], num_jobs: int, **more: object) -> dict[str, Result]:
    found: dict[str, Result] = {}

    def take(task: Task, result: Result, sample: str) -> None:
        assert task.case not in found
        found[task.case] = result

    run(tasks, Setting("chip", b"root", 1, **more), take, num_jobs)  # type: ignore[arg-type]
    return found


@pytest.mark.usefixtures("broken")
def test_each_fault_costs_its_case() -> None:
    declared = declare(open_target("chip"), "kernel", "rms_norm/[en]*/dtype=float32*")
    tasks = [d.task for d in declared if not d.unsupported]
    found = run_all(tasks, 2, timeout_s=6)
    assert set(found) == {task.case for task in tasks}
    errors = {case: result.message for case, result in found.items() if result.status == "error"}
    assert any("rows=7,k=577" in case for case in errors)
    for case, message in errors.items():
        if "rows=7,k=577" in case:
            assert message == "the process died with exit code 3"
        elif "rows=33,k=2880" in case:
            assert message == "no answer in 6 s"
        else:
            assert "RuntimeError: no such size" in message, case
    assert [r.status for r in found.values() if r.case not in errors] == ["pass"] * (len(found) - len(errors))
    assert len(errors) < len(found)


@pytest.mark.heavy
@pytest.mark.usefixtures("right")
def test_a_device_that_is_not_there() -> None:
    with pytest.raises(DeviceError, match="nothere"):
        run([norms()[0].task], Setting("nothere", b"root"), lambda *_: None)


class Stop(Exception):
    """Stands for a user who has had enough."""


@pytest.mark.usefixtures("right")
def test_a_run_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    order = Order("chip", folder, "quick", "rms_norm/normal/*", jobs=1, nonce="n")

    def stop_after_one(done: int, total: int) -> None:
        if done == 1:
            raise Stop

    with pytest.raises(Stop):
        certify(order, stop_after_one)
    done = [json.loads(line) for line in (folder / issue.UNFINISHED).read_text().splitlines()[1:]]
    assert len(done) == 1
    with (folder / issue.UNFINISHED).open("a") as file:
        file.write('{"kind":"result","row":"rms')  # cut off in the middle of a line
    counts: list[tuple[int, int]] = []
    found = certify(order, lambda done, total: counts.append((done, total)))
    declared, outcomes = found.declared, found.outcomes
    assert counts[0] == (1, len(outcomes))
    assert {o.case for o in outcomes} == {d.case for d in declared if not d.unsupported}
    assert [o.case for o in outcomes] == list(dict.fromkeys(o.case for o in outcomes))
    assert outcomes[0].seconds == done[0]["seconds"], "it was not run again"
    with pytest.raises(ConfigError, match="unfinished run of something else"):
        certify(Order("chip", folder, "quick", "rms_norm/small/*"), lambda *_: None)


@pytest.mark.usefixtures("right")
def test_a_pattern_that_matches_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a record of speed"):
        certify(Order("chip", tmp_path / "bundle", "full", baseline=Path(__file__)), lambda *_: None)
    with pytest.raises(ConfigError, match="matches no case"):
        certify(Order("chip", tmp_path / "bundle", only="nothing/*"), lambda *_: None)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.usefixtures("right")
def test_a_wrong_key_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such key"):
        certify(Order("chip", tmp_path / "bundle", keys=[tmp_path / "no such key"]), lambda *_: None)
    assert not (tmp_path / "bundle").exists()
