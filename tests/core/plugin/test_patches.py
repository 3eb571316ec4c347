"""No patches: what a plugin replaces in core or torch is noticed, wherever it does so, and refused by name."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

import core.engine.scheduler
import core.kernels.reference.copy
import core.kernels.reference.dense
import core.kv.prefix
import core.plugin.device
from core.config import EngineConfig
from core.engine.build import describe
from core.errors import PluginError
from core.plugin import DeviceFacts, Unavailable, patches
from core.plugin.loader import choose, discover
from tests.plugins import BARE_PLUGIN, install_plugin
from tests.shares import quick_of

PATCHES = {
    "core.kernels.reference.dense.rope": "core.kernels.reference.dense.rope = mine",
    "core.plugin.device.Device.seed": "core.plugin.device.Device.seed = mine",
    "core.engine.scheduler.Scheduler.__init__": "core.engine.scheduler.Scheduler.__init__ = mine",
    "core.kv.prefix.KEY_BYTES": "core.kv.prefix.KEY_BYTES = 16",
    "core.kernels.reference.dense.act_mul": "del core.kernels.reference.dense.act_mul",
    "core.kernels.reference.copy.kv_copy": "core.kernels.reference.copy.kv_copy = core.kernels.reference.copy.kv_swap",
    "torch.add": "torch.add = mine",
    "torch.nn.modules.linear.Linear.forward": "torch.nn.Linear.forward = mine",
    "torch.nn.modules.module.Module.__call__": "torch.nn.Module.__call__ = mine",
    "torch.mul": "torch.mul = functools.partial(mine, 1)",
}
ROPE, FORWARD = "core.kernels.reference.dense.rope", "torch.nn.modules.linear.Linear.forward"
MINE = """
import functools
import core.engine.scheduler, core.kernels.reference.copy, core.kernels.reference.dense, core.kv.prefix


def mine(*args, **kwargs):
    return 0


def patch():
    PATCH
"""
WHEN = {
    "import": ("", "\npatch()\n"),
    "probe": ("        return DeviceFacts(", "        patch()\n        return DeviceFacts("),
    "open": ('        return torch.device("cpu")', '        patch()\n        return torch.device("cpu")'),
    "kernels": ("", "\n\n@hookimpl\ndef core_kernels():\n    patch()\n    return []\n"),
}


def keep(monkeypatch: pytest.MonkeyPatch, attribute: str) -> None:
    """Undo what becomes of an attribute when the test ends."""
    owner, _, name = attribute.rpartition(".")
    place: Any = {"core": core, "torch": torch}[owner.partition(".")[0]]
    for part in owner.split(".")[1:]:
        place = getattr(place, part)
    monkeypatch.setattr(place, name, vars(place)[name])


def install(
    monkeypatch: pytest.MonkeyPatch, folder: Path, patch: str, when: str, module: str = "bare_plugin", **facts: str
) -> None:
    old, new = WHEN[when]
    source = BARE_PLUGIN.replace("import torch\n", "import torch\n" + MINE.replace("PATCH", patch), 1)
    source = source.replace(old, new, 1) if old else source + new
    more = "".join(f"{name}={value}, " for name, value in facts.items())
    install_plugin(monkeypatch, folder, "bare", source.replace("implicit=False,", f"implicit=False, {more}"), module)


@pytest.mark.parametrize("attribute", quick_of(PATCHES, ROPE, "core.kv.prefix.KEY_BYTES", "torch.add"))
def test_replacing_at_import_is_refused_by_name(
    attribute: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keep(monkeypatch, attribute)
    install(monkeypatch, tmp_path, PATCHES[attribute], "import")
    found = discover()
    [facts] = [c.facts for c in found if c.name == "bare"]
    assert isinstance(facts, Unavailable)
    assert facts.reason.startswith(f"plugin bare replaces {attribute}: ")
    # Nothing may run in a process that is no longer what it was, whichever device is asked for.
    for asked in ("bare", "cpu", None):
        with pytest.raises(PluginError, match=f"plugin bare replaces {attribute}: .*uninstall bare_plugin"):
            choose(found, asked)


def test_what_a_broken_plugin_replaced_is_not_the_next_ones_doing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keep(monkeypatch, "core.kv.prefix.KEY_BYTES")
    install(monkeypatch, tmp_path, "core.kv.prefix.KEY_BYTES = 16; raise OSError('no driver')", "import")
    found = {c.name: c for c in discover()}
    assert "no driver" in getattr(found["bare"].facts, "reason", "")
    assert isinstance(found["cpu"].facts, DeviceFacts)


def test_a_watch_sees_what_changed_since_its_own_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many others looked meanwhile: it begins with what the last of them saw, and is no part of them."""
    early = patches.Watch()
    monkeypatch.setattr(core.kv.prefix, "KEY_BYTES", 16)
    late = patches.Watch()
    assert late.look() == []
    assert early.look() == [("core.kv.prefix.KEY_BYTES", 16)]
    assert early.look() == []
    monkeypatch.setattr(core.kv.prefix, "KEY_BYTES", 17)
    assert late.look() == [("core.kv.prefix.KEY_BYTES", 17)]


@pytest.mark.parametrize(
    ("attribute", "when"),
    quick_of(
        product((ROPE, FORWARD), ("probe", "open", "kernels")), (ROPE, "probe"), (FORWARD, "open"), (ROPE, "kernels")
    ),
)
def test_replacing_later_is_refused_by_name(
    attribute: str, when: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_llama_dir: Path
) -> None:
    keep(monkeypatch, attribute)
    install(monkeypatch, tmp_path, PATCHES[attribute], when)
    with pytest.raises(PluginError, match=f"plugin bare replaces {attribute}: "):
        describe(EngineConfig(model=str(tiny_llama_dir), device="bare", fallback="allow"))


def test_a_second_package_of_the_distribution_counts_as_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keep(monkeypatch, "torch.add")
    (tmp_path / "bare_library.py").write_text("def mine(*args):\n    return 0\n")
    install(monkeypatch, tmp_path, "import bare_library; torch.add = bare_library.mine", "import")
    info = tmp_path / "bare_plugin-1.0.dist-info"
    (info / "top_level.txt").write_text("bare_plugin\nbare_library\n")
    [facts] = [c.facts for c in discover() if c.name == "bare"]
    assert isinstance(facts, Unavailable)
    assert "plugin bare replaces torch.add" in facts.reason


@pytest.mark.parametrize("when", quick_of(WHEN, "import", "kernels"))
def test_additions_are_allowed(
    when: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_llama_dir: Path
) -> None:
    """That is how torch registers backends."""
    monkeypatch.setattr(torch, "warp", None, raising=False)
    del torch.warp
    install(monkeypatch, tmp_path, "torch.warp = mine", when)
    plan = describe(EngineConfig(model=str(tiny_llama_dir), device="bare", fallback="allow"))
    assert plan.notes == ()
    assert torch.warp() == 0


@pytest.mark.parametrize("when", quick_of(["import", "open"], "open"))
def test_a_torch_extension_is_listed(
    when: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_llama_dir: Path
) -> None:
    """What the distribution that the plugin names replaces in torch is shown; core stays out of its reach."""
    keep(monkeypatch, "torch.add")
    add_extension(monkeypatch, tmp_path / "extension", "def mine(*args):\n    return 0\n")
    # Distributions have several spellings of one name.
    names = {"torch_extension": "'Torch.Warp'"}
    install(monkeypatch, tmp_path / "plugin", "import torch_warp; torch.add = torch_warp.mine", when, **names)
    plan = describe(EngineConfig(model=str(tiny_llama_dir), device="bare", fallback="allow"))
    assert plan.notes == ("torch.add is replaced by Torch.Warp",)


def test_a_torch_extension_may_not_touch_core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keep(monkeypatch, "core.kernels.reference.dense.rope")
    add_extension(monkeypatch, tmp_path / "extension", "def mine(*args):\n    return 0\n")
    patch = "import torch_warp; core.kernels.reference.dense.rope = torch_warp.mine"
    install(monkeypatch, tmp_path / "plugin", patch, "import", torch_extension="'torch-warp'")
    [facts] = [c.facts for c in discover() if c.name == "bare"]
    assert isinstance(facts, Unavailable)
    assert "a plugin may not change core" in facts.reason


def add_extension(monkeypatch: pytest.MonkeyPatch, folder: Path, source: str) -> None:
    """A distribution `torch-warp` with one module, which is no plugin."""
    install_plugin(monkeypatch, folder, "unused", source, "torch_warp")
    info = folder / "torch_warp-1.0.dist-info"
    (info / "entry_points.txt").unlink()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-warp\nVersion: 1.0\n")


def test_the_plugins_of_the_tree_replace_nothing() -> None:
    assert all(c.notes == () and not c.patched for c in discover())
