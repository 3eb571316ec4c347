"""The simulated chip as core uses it: graphs that are replayed, work beside the rest, and a certificate."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.devices.kunlun.programs import run

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]
CORE = Path(sys.executable).parent / "core"


@pytest.mark.parametrize("schedule", ["eager", "lazy", "seed:1"])
def test_results_outlive_the_next_replay_and_pools_stay_in_place(schedule: str) -> None:
    told = run("replays", f"memory_mib=64,schedule={schedule}")
    assert told["doubled"] == [[2.0] * 4, [40.0] * 4, [600.0] * 4]
    assert told["pool"] == [321.0] * 4
    assert told["in_place"]
    assert told["given"] == [[20.0] * 4, [300.0] * 4], "what is passed is read, and left as it was"


def test_work_aside_runs_after_what_came_before_and_beside_what_comes_later() -> None:
    """A copy takes 0.8 s at 40 MiB/s; kernels take a second each, one before it and one beside it."""
    told = run("beside", f"memory_mib=128,pcie_bytes_per_s={40 << 20}", mib=32)
    assert not told["at_once"]
    assert told["copied_s"] == pytest.approx(1.8, rel=0.01)
    assert told["all_s"] == pytest.approx(2.0, rel=0.01)
    assert told["after"]


def test_every_kernel_passes(tmp_path: Path) -> None:
    """One case of each kind, on three chips: collectives too."""
    command = [CORE, "certify", "--device", "kunlun", "--quick", "--jobs", "2", "--out", tmp_path / "bundle"]
    env = os.environ | {"KUNLUN_SIM": "count=3,memory_mib=512"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=880, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " 0 failed, 0 waived" in done.stdout
    assert "tier production" in done.stdout
