"""The XLA device is certified, kernel by kernel, with one case of each kind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy
CORE = Path(sys.executable).parent / "core"


@pytest.mark.timeout(900)
def test_every_kernel_passes(tmp_path: Path) -> None:
    command = [CORE, "certify", "--device", "xla", "--quick", "--jobs", "2", "--out", tmp_path / "bundle"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=880, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " 0 failed, 0 waived" in done.stdout
