"""A vendor's repository that uses the pytest plugin, by the one line that it takes."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugins import install_plugin

ONLY_NORM = """
import torch
from core.kernels.row import Implementation
from core.plugin import Device, DeviceFacts, Memory, hookimpl

API = (1, 0)


class Chip(Device):
    def probe(self):
        return DeviceFacts("chip", "cpu", "a test", 1, 1 << 28, ("float32",), host_memory=True, implicit=False)

    def open(self, index):
        return torch.device("cpu")

    def memory(self):
        return Memory(1 << 28, 1 << 28)

    def synchronize(self):
        pass


def rms_norm(x, w, *, eps):
    return w * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)


@hookimpl
def core_device():
    return Chip()


@hookimpl
def core_kernels():
    return [Implementation("rms_norm", rms_norm, "chip")]
"""


@pytest.mark.parametrize(
    ("eps", "code"), [pytest.param("eps", 0, marks=pytest.mark.heavy), ("eps * 2", 1)], ids=["right", "wrong"]
)
def test_one_line_in_a_vendors_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eps: str, code: int) -> None:
    install_plugin(monkeypatch, tmp_path / "site", "chip", ONLY_NORM.replace("EPS", eps))
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "pytest.ini").write_text("[pytest]\naddopts = -p conformance.pytest_plugin --core-device chip\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", "rms_norm"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert ("failed" in done.stdout) == bool(code)
    assert "passed" in done.stdout
    if code:
        assert "A y: " in done.stdout
