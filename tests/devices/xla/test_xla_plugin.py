"""The XLA plugin before it is opened: it imports no jax, and says what is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from core.plugin import DeviceFacts, Unavailable
from devices.xla.device import CACHE_VARIABLE, XlaDevice, cache_folder

PROBE = """
import json, sys
from devices.xla.plugin import core_device
facts = core_device().probe()
imported = [name for name in ("jax", "torchax", "torch") if name in sys.modules]
print(json.dumps([getattr(facts, "reason", None), imported]))
"""


def installed() -> bool:
    try:
        return bool(version("jax") and version("torchax"))
    except PackageNotFoundError:
        return False


def with_packages(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """As if these packages were installed."""
    for name in names:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("")
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(folder))


def test_probing_imports_neither_jax_nor_torch() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, timeout=60)
    reason, imported = json.loads(done.stdout)
    assert imported == []
    assert (reason is None) == installed()
    if reason:
        assert "install the extra 'xla-jax'" in reason


def test_facts_by_what_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_packages(tmp_path, monkeypatch, "jax", "torchax")
    facts = XlaDevice().probe()
    assert isinstance(facts, DeviceFacts)
    assert facts.arch == "jax 1.0, torchax 1.0"
    assert not facts.implicit, "nobody gets it unasked"
    assert not facts.shapes.dynamic


def test_both_lowerings_in_one_environment_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_packages(tmp_path, monkeypatch, "jax", "torchax", "torch_xla")
    facts = XlaDevice().probe()
    assert isinstance(facts, Unavailable)
    assert "uninstall torch_xla" in facts.reason


def test_the_cache_is_in_the_users_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "core" / "xla"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "core" / "xla"
    assert CACHE_VARIABLE in (Path(__file__).parents[3] / "devices" / "xla" / "README.md").read_text()
