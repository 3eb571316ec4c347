"""The examination of a device's copies and events: devices, and the catalogue of wrong copies."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.target import METHODS, open_target
from tests.conformance.examined import (  # noqa: F401  tests, run for ROWS
    failures,
    test_right_kernels_pass,
    test_wrong_kernels_are_refused,
)
from tests.plugins import install_hostile

ROWS = METHODS


@pytest.mark.parametrize("row", ROWS)
def test_devices_pass(row: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install_hostile(monkeypatch, tmp_path / "plugin")
    for device in ("cpu", "hostile"):
        target = open_target(device)
        assert target.providers(row) == [device]
        assert not failures(row, target, device)
