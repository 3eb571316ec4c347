"""Certificates are shown for what was examined, and for nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.plugin import certificate, loader
from core.plugin.facts import DeviceFacts
from core.plugin.identity import core_digest, plugin_of
from tests.server.processes import run_here


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CORE_CERTIFICATES", str(tmp_path))
    return tmp_path


@pytest.fixture
def chosen() -> loader.Candidate:
    return loader.choose(loader.discover(), "cpu")


def made(chosen: loader.Candidate, level: str, **changes: Any) -> bytes:
    """A certificate of what is installed, as far as it is shown, with other values here and there."""
    assert isinstance(chosen.facts, DeviceFacts)
    assert chosen.plugin is not None
    predicate = {
        "result": "PASSED",
        "level": level,
        "tier": "production",
        "suite": {"version": "0.1.0", "core_sha256": core_digest()},
        "plugin": {"files": plugin_of("cpu", "core", chosen.plugin).files},
        "device": {"name": "cpu", "arch": chosen.facts.arch},
        "counts": {"passed": 7},
        "finished": "2026-11-29T10:00:00+00:00",
    }
    return json.dumps({"predicate": {**predicate, **changes}, "more": 1}).encode()


def test_without_any_it_says_how_to_get_one(place: Path, chosen: loader.Candidate) -> None:
    assert certificate.status(chosen) == "none; core certify --device cpu makes one"


def test_those_that_hold_are_shown_newest_first(place: Path, chosen: loader.Candidate) -> None:
    certificate.keep("cpu", "kernel", made(chosen, "kernel"))
    certificate.keep("cpu", "quick", made(chosen, "quick", result="FAILED", finished="2026-11-30T10:00:00+00:00"))
    assert certificate.status(chosen) == (
        "FAILED at level quick, tier production, 7 cases, 2026-11-30; "
        "PASSED at level kernel, tier production, 7 cases, 2026-11-29"
    )


def test_the_same_level_replaces(place: Path, chosen: loader.Candidate) -> None:
    certificate.keep("cpu", "kernel", made(chosen, "kernel"))
    path = certificate.keep("cpu", "kernel", made(chosen, "kernel", result="FAILED"))
    assert path.is_relative_to(place)
    assert certificate.status(chosen).startswith("FAILED at level kernel")
    assert "PASSED" not in certificate.status(chosen)


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"device": {"name": "cpu", "arch": "another"}}, "another chip (another)"),
        ({"plugin": {"files": {"plugin.py": "0"}}}, "other files of the plugin (__init__.py and more)"),
        ({"suite": {"version": "0.0.9", "core_sha256": "0"}}, "another core (0.0.9)"),
    ],
)
def test_what_was_examined_elsewhere_does_not_hold(
    place: Path, chosen: loader.Candidate, changes: dict[str, Any], shown: str
) -> None:
    certificate.keep("cpu", "kernel", made(chosen, "kernel", **changes))
    assert certificate.status(chosen) == f"none that holds: the one of 2026-11-29 is for {shown}"


def test_of_another_device_or_version_it_is_none(place: Path, chosen: loader.Candidate) -> None:
    certificate.keep("cpu", "kernel", made(chosen, "kernel", device={"name": "other", "arch": "x"}))
    certificate.keep("cpu", "quick", b'{"predicate": {"result": "PASSED"}}')
    assert certificate.status(chosen).startswith("none; ")


def test_a_vendor_ships_them_in_the_package(
    place: Path, chosen: loader.Candidate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "vendor"
    (package / "certificates").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "plugin.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    import vendor.plugin  # type: ignore[import-not-found]

    theirs = replace(chosen, plugin=vendor.plugin)
    shipped = package / "certificates" / "kernel.json"
    shipped.write_bytes(made(theirs, "kernel"))
    assert certificate.status(theirs).startswith("PASSED at level kernel")
    (package / "plugin.py").write_text("x = 1")
    assert certificate.status(theirs).endswith("other files of the plugin (plugin.py)")


def test_core_plan_shows_it(place: Path, chosen: loader.Candidate, tiny_llama_dir: Path) -> None:
    certificate.keep("cpu", "kernel", made(chosen, "kernel"))
    shown = json.loads(run_here("plan", str(tiny_llama_dir), "--device", "cpu", "--json").stdout)
    rows = {row["name"]: row["value"] for row in shown["plan"]}
    assert rows["certificate"].startswith("PASSED at level kernel")
