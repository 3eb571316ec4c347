"""The XLA plugin before it is opened: it imports no library, chooses by what is installed, and says what is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from core.plugin import DeviceFacts, Unavailable
from devices.xla.cache import cache_folder
from devices.xla.device import XlaDevice
from devices.xla.lowering import Way, choose, versions

PROBE = """
import json, sys
from devices.xla.plugin import core_device
facts = core_device().probe()
imported = [name for name in ("jax", "torchax", "torch_xla", "torch") if name in sys.modules]
print(json.dumps([getattr(facts, "reason", None), imported]))
"""
JAX = {"jax": "0.10", "torchax": "0.0.14"}
TORCH_XLA = {"torch_xla": "2.9"}


def test_probing_imports_no_library() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, timeout=60)
    reason, imported = json.loads(done.stdout)
    assert imported == []
    assert (reason is None) == isinstance(choose(versions()), Way)


def test_facts_are_those_of_what_is_installed() -> None:
    facts, way = XlaDevice().probe(), choose(versions())
    if isinstance(way, Unavailable):
        assert facts == way
        return
    assert isinstance(facts, DeviceFacts)
    assert facts.torch_extension == way.extension
    assert all(f"{name} {versions()[name]}" in facts.arch for name in way.distributions)
    assert not facts.implicit, "nobody gets it unasked"
    assert not facts.shapes.dynamic


@pytest.mark.parametrize(
    ("installed", "extra"),
    [(JAX, "xla-jax"), (TORCH_XLA, "torch-xla"), ({"jax": "0.7", **TORCH_XLA}, "torch-xla")],
    ids=["jax", "torch_xla", "jax-for-torch_xla"],
)
def test_a_way_by_what_is_installed(installed: dict[str, str], extra: str) -> None:
    way = choose(installed)
    assert isinstance(way, Way)
    assert way.extra == extra


@pytest.mark.parametrize("installed", [{}, {"jax": "0.10"}, {"torchax": "0.0.14"}], ids=str)
def test_what_is_missing_is_named_with_both_extras(installed: dict[str, str]) -> None:
    found = choose(installed)
    assert isinstance(found, Unavailable)
    assert "jax and torchax, or torch_xla" in found.reason
    assert "install the extra 'xla-jax' or 'torch-xla'" in found.reason


@pytest.mark.parametrize("jax", [JAX, {"torchax": "0.0.14"}], ids=["whole", "torchax"])
def test_both_in_one_environment_are_refused(jax: dict[str, str]) -> None:
    found = choose({**jax, **TORCH_XLA})
    assert isinstance(found, Unavailable)
    assert "torchax and torch_xla are both installed" in found.reason
    assert "uninstall one of them" in found.reason


def test_the_cache_is_in_the_users_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "core" / "xla"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "core" / "xla"
