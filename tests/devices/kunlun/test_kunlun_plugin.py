"""The Kunlun plugin before it is opened: what it stands on, what it states, which rows the vendor's ops serve."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from core.errors import ConfigError
from core.kernels.table import KV_BUNDLE, TABLE
from core.plugin import DeviceFacts, Unavailable
from devices.kunlun import limits, vendor
from devices.kunlun.device import GRAPHS, KunlunDevice
from devices.kunlun.kernels import implementations
from devices.kunlun.vendor import OPS, SIMULATOR, Hardware, Simulated

PUBLIC = """
def rmsnorm(x, weight, eps, *, out): ...
def add_rmsnorm(x, residual, weight, eps, *, out, residual_output): ...
def silu_and_mul(x, *, axis, turn, out): ...
def matmul(x, w, out, *, bias=None): ...
def quant2d(x, y, max, *, force_sdnn=False): ...
def reshape_and_cache(key, value, key_cache, value_cache, slot_mapping): ...
def reshape_and_cache_flash(key, value, key_cache, value_cache, slot_mapping, BLHD_LAYOUT): ...
def swap_blocks(src, dst, block_mapping): ...
def prefill_attention(q, k, v, out, *, is_causal, is_prefix_cache, block_table, softmax_lse, swa_left, sink): ...
"""
"""Of the vendor's module, what public sources show."""


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (SIMULATOR, GRAPHS):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def hardware(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hardware:
    """The vendor's module, as far as it can be found."""
    (tmp_path / f"{OPS}.py").write_text(PUBLIC)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    found = vendor.find()
    assert isinstance(found, Hardware)
    return found


def test_nothing_is_imported_to_say_that_nothing_is_there() -> None:
    program = "import sys; from devices.kunlun.plugin import core_device; print(core_device().probe().reason); "
    program += "print([name for name in ('torch', 'devices.kunlun.sim') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    reason, imported = done.stdout.splitlines()
    assert f"{OPS} is not installed" in reason
    assert f"{SIMULATOR}=1 runs the simulator" in reason
    assert imported == "[]"


def test_the_simulator_is_there_only_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(vendor.find(), Unavailable)
    monkeypatch.setenv(SIMULATOR, "count=3,memory_mib=64")
    facts = KunlunDevice().probe()
    assert isinstance(facts, DeviceFacts)
    assert (facts.torch_device_type, facts.claims, facts.torch_extension) == ("kunlun", (), None)
    assert not facts.implicit, "nobody gets it unasked"
    assert "simulated" in facts.arch
    assert (facts.count, facts.memory_bytes) == (3, 64 << 20)
    assert "float64" not in facts.dtypes
    assert facts.shapes.dynamic


def test_graphs_come_with_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SIMULATOR, "1")
    monkeypatch.setenv(GRAPHS, "1")
    facts = KunlunDevice().probe()
    assert isinstance(facts, DeviceFacts)
    assert facts.shapes.tokens
    assert max(facts.shapes.seqs) <= limits.MAX_SEQS


def test_an_option_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SIMULATOR, "colour=red")
    with pytest.raises(ConfigError, match="colour"):
        KunlunDevice().probe()


def test_the_vendors_module_comes_before_the_simulator(hardware: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SIMULATOR, "1")
    assert vendor.find() is hardware
    assert (hardware.torch_type, hardware.collectives) == ("cuda", "nccl")
    assert OPS not in sys.modules, "it is found, not imported"


def test_a_machine_with_the_vendors_module_and_no_chip_says_so(hardware: Hardware) -> None:
    found = KunlunDevice().probe()
    assert isinstance(found, Unavailable)
    assert "no chip" in found.reason


def test_rows_follow_from_the_ops_and_arguments_that_are_there(hardware: Hardware) -> None:
    """What public sources show does not attend to codes with scales: attention is then no row of ours."""
    hardware.ops = importlib.import_module(OPS)
    try:
        facts = DeviceFacts("kunlun", "cuda", "a test", 1, 1 << 30, limits.DTYPES)
        rows = {one.row for one in implementations(facts, hardware)}
        assert {"linear", "rms_norm", "act_mul", "kv_layout", "kv_write", "kv_gather", "kv_swap"} <= rows
        assert not rows & {"attn_plan", "attn_paged"}
        assert "rope" not in rows, "torch has no such op here"
        hardware.ops = SimpleNamespace(**{**vars(hardware.ops), "rotary_embedding": print})
        assert "rope" in {one.row for one in implementations(facts, hardware)}
    finally:
        del sys.modules[OPS]


def test_the_stand_in_has_all_that_the_rows_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SIMULATOR, "1")
    found, facts = vendor.find(), KunlunDevice().probe()
    assert isinstance(found, Simulated)
    assert isinstance(facts, DeviceFacts)
    made = implementations(facts, found)
    assert {name for name, row in TABLE.items() if row.production} <= {one.row for one in made}
    assert {"kv_layout", "kv_write", "kv_gather", "kv_swap", "attn_plan", "attn_paged"} <= {
        one.row for one in made if one.row in KV_BUNDLE
    }
    assert all(one.support.dtypes == frozenset(facts.dtypes) for one in made)
