"""Waivers by the command: a device with one failing kernel is certified with them only, and not when they are stale."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conformance import identity
from conformance.certificate import issue, verify
from conformance.certificate.records import encode_lines
from conformance.certify import Header, Order, certify
from tests.conformance.test_pytest_plugin import ONLY_NORM
from tests.plugins import install_plugin

CORE = Path(sys.executable).parent / "core"
RIGHT = ONLY_NORM.replace("EPS", "eps")
FAILING = RIGHT.replace("    return w * x", "    raise RuntimeError('not yet')\n    return w * x")
HALF = FAILING.replace("    raise", "    if len(x) == 70: raise")
NONCE = "n"


def waivers(path: Path, *patterns: str, expires: str = "2999-01-01") -> Path:
    common = {"device": "chip", "owner": "me", "issue": "https://issues/1", "reason": "under way", "expires": expires}
    path.write_text(json.dumps([{"test": pattern, **common} for pattern in patterns]))
    return path


def statuses(order: Order) -> dict[str, str]:
    return {o.case: o.status for o in certify(order, lambda *_: None).outcomes}


@pytest.mark.heavy
def test_what_is_waived_is_decided_when_the_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same run, resumed with other waivers: nothing is run again."""
    install_plugin(monkeypatch, tmp_path / "site", "chip", HALF)
    folder = tmp_path / "bundle"
    plain: dict[str, Any] = {"level": "quick", "only": "rms_norm/*/dtype=float32*", "jobs": 1, "nonce": NONCE}
    without = statuses(Order("chip", folder, **plain))
    failing = {case for case, status in without.items() if status == "error"}
    assert failing
    assert set(without.values()) == {"pass", "error"}

    def resumed(*patterns: str, **more: str) -> dict[str, str]:
        path = waivers(tmp_path / "waivers.json", *patterns, **more)
        return statuses(Order("chip", folder, waivers=path, **plain))

    assert resumed(*failing) == {case: "waived" if case in failing else "pass" for case in without}
    assert resumed(*failing, expires="2020-01-01") == without
    assert resumed("*") == {case: "waived" if case in failing else "fail" for case in without}


def core(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([CORE, *map(str, args)], capture_output=True, text=True, check=False, timeout=280)


@pytest.mark.heavy
def test_by_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whole run; those with waivers resume it, as if it had been cut off before the failing kernel's cases."""
    install_plugin(monkeypatch, tmp_path / "site", "chip", FAILING)
    first = tmp_path / "without"
    asked = ["certify", "--device", "chip", "--quick", "--nonce", NONCE, "--jobs", 2]
    done = core(*asked, "--out", first)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED, tier functional, level quick" in done.stdout
    read = verify.read(first)
    failing = [o.case for o in read.outcomes if o.status != "pass"]
    assert any(case.startswith("rms_norm/") for case in failing)

    def resumed(name: str, *patterns: str, **more: str) -> subprocess.CompletedProcess[str]:
        folder = tmp_path / name
        shutil.copytree(first / issue.SAMPLES, folder / issue.SAMPLES)
        suite, plugin = read.predicate.suite.tree_sha256, identity.plugin("chip").digest
        header = Header("chip", "quick", "*", NONCE, suite, plugin)
        rest = encode_lines(o for o in read.outcomes if o.row != "rms_norm")
        (folder / issue.UNFINISHED).write_bytes(msgspec.json.encode(header) + b"\n" + rest)
        return core(*asked, "--out", folder, "--waivers", waivers(tmp_path / f"{name}.json", *patterns, **more))

    done = resumed("with", *failing)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED, tier functional, level quick" in done.stdout
    assert core("verify", tmp_path / "with").returncode == 0
    assert resumed("expired", *failing, expires="2020-01-01").returncode == 1
    done = resumed("passing", *failing, "softcap/*")
    assert done.returncode == 1
    told = " ".join((done.stdout + done.stderr).split())
    assert "passes, although it is waived (https://issues/1): drop the waiver" in told
