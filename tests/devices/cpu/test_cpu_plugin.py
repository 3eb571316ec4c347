"""The CPU plugin: probing without torch, what it states, what it opens."""

import inspect
import subprocess
import sys

import pytest
import torch

from core.errors import DeviceError
from core.kernels.table import KV_BUNDLE, TABLE
from core.plugin import DeviceFacts, Need, Unavailable
from devices.cpu import device, machine, plugin
from devices.cpu.device import CpuDevice


def test_probing_imports_no_torch():
    code = (
        "import sys; from devices.cpu import plugin; print(plugin.core_device().probe().name, 'torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["cpu", "False"]


def test_facts():
    facts = CpuDevice().probe()
    assert isinstance(facts, DeviceFacts)
    assert (facts.name, facts.torch_device_type, facts.count, facts.max_depth) == ("cpu", "cpu", 1, 0)
    assert facts.host_memory
    assert not facts.accelerator
    assert set(facts.dtypes) == {"float32", "bfloat16", "float16"}
    assert facts.memory_bytes > 2**20


@pytest.mark.parametrize(("flags", "best"), [("avx2 avx512f", "float32"), ("avx512_bf16", "bfloat16"), ("", "float32")])
def test_best_dtype_is_one_with_instructions(monkeypatch, tmp_path, flags, best):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(f"flags : {flags}\n")
    sets = machine.instruction_sets(tmp_path)
    monkeypatch.setattr(machine, "instruction_sets", lambda: sets)
    assert CpuDevice().probe().dtypes[0] == best


def test_without_a_fit_torch_the_reason_has_a_remedy(monkeypatch):
    def absent(name):
        raise device.PackageNotFoundError(name)

    monkeypatch.setattr(device, "version", absent)
    missing = CpuDevice().probe()
    assert isinstance(missing, Unavailable)
    assert "install" in missing.reason
    monkeypatch.setattr(device, "version", lambda name: "2.4.1+cpu")
    old = CpuDevice().probe()
    assert isinstance(old, Unavailable)
    assert "2.4.1+cpu is older than 2.5" in old.reason


@pytest.mark.parametrize(("asked", "num"), [("", None), ("3", 3), ("2,1", 2), ("0", None), ("many", None)])
def test_open_takes_the_usable_processors_or_what_openmp_is_told(monkeypatch, asked, num):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    before = torch.get_num_threads()
    opened = CpuDevice()
    try:
        assert opened.open(0) == torch.device("cpu")
        assert torch.get_num_threads() == (num or machine.num_cpus())
    finally:
        torch.set_num_threads(before)
    memory = opened.memory()
    assert 0 < memory.free_bytes <= memory.total_bytes
    with pytest.raises(DeviceError, match="cpu device 1 does not exist"):
        opened.open(1)


def test_kernels_take_what_their_rows_say():
    kernels = plugin.core_kernels(CpuDevice().probe())
    assert len({(k.row, k.provider, k.support.schemes) for k in kernels}) == len(kernels)
    for kernel in kernels:
        row = TABLE[kernel.row]
        want = [p for p in inspect.signature(row.reference).parameters.values() if p.name not in row.parts]
        fixed = getattr(kernel.kernel, "keywords", {})  # what the plugin itself has bound
        have = [p for p in inspect.signature(kernel.kernel).parameters.values() if p.name not in fixed]
        assert [(p.name, p.kind) for p in have] == [(p.name, p.kind) for p in want]
        assert fixed or [p.default for p in have] == [p.default for p in want]
        assert kernel.support.refuses(Need(dtype="int8")) is not None
    native = {k.row for k in kernels}
    assert {name for name, row in TABLE.items() if row.production} <= native
    assert {"kv_layout", "kv_write", "kv_gather", "attn_plan", "attn_paged"} <= native & set(KV_BUNDLE)
