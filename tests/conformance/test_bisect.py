"""Bisecting names the first wrong kernel and its layer, and finds nothing on right devices."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from conformance.engine.bisect import bisect
from tests.conformance.wrong_chips import LAYER, LOST, MASK, MIXED, install_chip
from tests.plugins import install_hostile


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Devices set how many threads torch uses: put back what was."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def core(*args: str) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).parent / "core", "certify", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.heavy
def test_bisect_finds_nothing_on_the_cpu() -> None:
    done = core("--device", "cpu", "--bisect")
    assert (done.returncode, done.stdout) == (0, "no departure\n"), done.stderr


def test_bisect_finds_nothing_on_the_hostile_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_hostile(monkeypatch, tmp_path / "site")
    assert bisect("hostile", "induction", "float32") is None


@pytest.mark.parametrize(
    ("wrong", "row", "provider", "layer", "call"),
    [
        (LAYER, "attn_paged", "chip", "layer 1", 2),
        (MASK, "attn_paged", "chip", "layer 0", 1),
        (LOST, "kv_write", "chip", "layer 0", 1),
        (MIXED, "attn_paged", "chip", "layer 0", 19),
    ],
    ids=["layer", "mask", "lost", "mixed"],
)
def test_bisect_names_kernel_and_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str, row: str, provider: str, layer: str, call: int
) -> None:
    install_chip(monkeypatch, tmp_path, wrong)
    found = bisect("chip", "induction", "float32")
    assert found is not None
    assert (found.row, found.provider, found.layer, found.call) == (row, provider, layer, call)


def test_bisect_says_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_chip(monkeypatch, tmp_path, LAYER)
    done = core("--device", "chip", "--bisect")
    assert done.returncode == 1
    assert "float32: attn_paged of chip departs in layer 1 (step 1, call 2 of attn_paged): error " in done.stdout
