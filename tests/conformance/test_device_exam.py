"""The examination of a device's copies and events: devices, and the catalogue of wrong copies."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.mutants.mutant import Mutant
from conformance.mutants.score import fate
from conformance.target import METHODS, open_target
from tests.conformance.moving import SEED, failures, failures_of, mutants_of, name_of
from tests.plugins import install_hostile


@pytest.mark.parametrize("mutant", mutants_of(METHODS, "wrong", "cheat"), ids=name_of)
def test_wrong_copies_are_refused(mutant: Mutant) -> None:
    met = fate(mutant, SEED)
    assert met.ok, met.killers


@pytest.mark.parametrize("mutant", mutants_of(METHODS, "right"), ids=name_of)
def test_right_copies_pass(mutant: Mutant) -> None:
    assert not failures_of(mutant)


@pytest.mark.parametrize("row", METHODS)
def test_devices_pass(row: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install_hostile(monkeypatch, tmp_path / "plugin")
    for device in ("cpu", "hostile"):
        target = open_target(device)
        assert target.providers(row) == [device]
        assert not failures(row, target, device)
