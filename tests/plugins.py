"""Plugins as other distributions: what a vendor's package looks like to core, without installing one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

BARE_PLUGIN = """
import torch
from core.plugin import Device, DeviceFacts, Memory, hookimpl

API = (1, 0)


class Bare(Device):
    def probe(self):
        return DeviceFacts(
            name="bare", torch_device_type="cpu", arch="a test", count=1, memory_bytes=1 << 28,
            dtypes=("float32",), host_memory=True, implicit=False,
        )

    def open(self, index):
        return torch.device("cpu")

    def memory(self):
        return Memory(1 << 28, 1 << 28)

    def synchronize(self):
        pass


@hookimpl
def core_device():
    return Bare()
"""


def install_plugin(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    name: str,
    source: str,
    module: str = "",
    group: str = "core.devices",
) -> None:
    """Make `source` the plugin `name` of a distribution of its own, here and in processes started from here."""
    module = module or f"{name}_plugin"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}\n")
    (info / "RECORD").write_text(f"{module}.py,,\n")
    (info / "top_level.txt").write_text(f"{module}\n")
    monkeypatch.syspath_prepend(str(folder))
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.delitem(sys.modules, module, raising=False)


def install_hostile(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """The impolite device of tests/devices/hostile."""
    source = (Path(__file__).parent / "devices" / "hostile" / "hostile_device.py").read_text()
    install_plugin(monkeypatch, folder, "hostile", source)
