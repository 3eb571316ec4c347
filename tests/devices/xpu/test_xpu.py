"""Intel GPUs, as far as can be without one: why there is none, whether torch has what is used, and each path on the
host."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from conformance.model import induction_path
from conformance.target import host_target
from core import LLM, ConfigError, DeviceError, SamplingParams
from core.plugin import DeviceFacts, Unavailable
from core.plugin.loader import choose, discover
from devices.xpu.device import XpuDevice
from devices.xpu.kernels import implementations
from tests.conformance.examined import failures
from tests.devices.xpu.xpu_on_host import FACTS, XpuOnHost
from tests.plugins import install_plugin

HERE = Path(__file__).parent
SOURCE = HERE.parent.parent.parent / "devices" / "xpu" / "device.py"
GPU = SimpleNamespace(name="Arc B580", driver_version="1.6", total_memory=12 << 30, is_integrated_gpu=False)


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams and events are those of torch.cpu, which has the same names."""
    for name in ("Event", "Stream", "current_stream", "set_device", "stream", "synchronize"):
        monkeypatch.setattr(torch.xpu, name, getattr(torch.cpu, name))


def reason() -> str:
    facts = XpuDevice().probe()
    assert isinstance(facts, Unavailable)
    return facts.reason


# Why there is none


def test_it_is_found_and_says_why_it_cannot_be_used() -> None:
    candidate = choose([c for c in discover() if c.name != "xpu"], None)
    assert candidate.name == "cpu"
    [xpu] = [c for c in discover() if c.name == "xpu"]
    assert isinstance(xpu.facts, Unavailable)
    assert xpu.facts.reason == (
        f"torch {torch.__version__} was not built for Intel GPUs: install torch 2.8 or later, built for Intel GPUs"
    )


def test_a_torch_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "xpu", "20250000", raising=False)
    monkeypatch.setattr(torch, "__version__", "2.7.1+xpu")
    assert reason() == "torch 2.7.1+xpu is too old: install torch 2.8 or later, built for Intel GPUs"


def test_no_gpu_in_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count is torch's own, which is 0 here."""
    monkeypatch.setattr(torch.version, "xpu", "20250000", raising=False)
    assert reason().startswith("torch finds no Intel GPU: look at its driver and Level Zero")


@pytest.mark.parametrize("integrated", [False, True])
def test_facts_of_one(monkeypatch: pytest.MonkeyPatch, integrated: bool) -> None:
    monkeypatch.setattr(torch.version, "xpu", "20250000", raising=False)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 2)
    found = SimpleNamespace(**{**vars(GPU), "is_integrated_gpu": integrated})
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda index: found)
    facts = XpuDevice().probe()
    assert isinstance(facts, DeviceFacts)
    assert (facts.arch, facts.count, facts.memory_bytes) == ("Arc B580, driver 1.6", 2, 12 << 30)
    assert facts.host_memory == integrated
    assert not facts.implicit, "it was never certified"


# What torch has


def test_torch_has_every_name_that_is_used() -> None:
    used = {
        node.attr
        for node in ast.walk(ast.parse(SOURCE.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "_xpu()"
    }
    assert {"Event", "Stream", "mem_get_info", "set_device", "stream"} <= used
    assert not {name for name in used if not hasattr(torch.xpu, name)}


def test_torch_declares_what_is_read_of_a_gpu() -> None:
    stubs = (Path(torch.__file__).parent / "_C" / "__init__.pyi").read_text()
    declared = stubs.partition("class _XpuDeviceProperties:")[2].partition("\nclass ")[0]
    fields = re.findall(r"^    (\w+): ", declared, re.MULTILINE)
    # Not every torch says whether it is integrated, and the code does without.
    assert set(vars(GPU)) - {"is_integrated_gpu"} <= set(fields)


# Memory and collectives


def test_memory_of_a_gpu(monkeypatch: pytest.MonkeyPatch, on_host: None) -> None:
    device = XpuDevice()
    assert device.open(0) == torch.device("xpu", 0)
    for name, value in (("mem_get_info", (5, 12)), ("memory_reserved", 4), ("memory_allocated", 1)):
        monkeypatch.setattr(torch.xpu, name, lambda index, value=value: value)
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda index: GPU)
    memory = device.memory()
    assert (memory.free_bytes, memory.total_bytes) == (5 + 3, 12), "what the allocator holds without use is free"

    def unknown(index: int) -> None:
        raise RuntimeError("doesn't support querying the available free memory")

    monkeypatch.setattr(torch.xpu, "mem_get_info", unknown)
    with pytest.raises(DeviceError, match=r"xpu 0 does not say how much memory is free .*UR_L0_ENABLE_SYSMAN"):
        device.memory()
    integrated = SimpleNamespace(**{**vars(GPU), "is_integrated_gpu": True})
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda index: integrated)
    assert 0 < device.memory().free_bytes <= device.memory().total_bytes


def test_collectives_need_xccl(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"has no xccl.*or leave out tensor_parallel_size"):
        XpuDevice().collective_backend()
    monkeypatch.setattr(torch.distributed, "is_xccl_available", lambda: True)
    assert XpuDevice().collective_backend() == "xccl"


# Kernels and paths, on the host


@pytest.mark.parametrize("row", ["linear", "rms_norm", "add_rms_norm"])
def test_kernels_are_right_on_the_host(row: str) -> None:
    assert not failures(row, host_target(*implementations(FACTS)), "xpu")


def test_copies_and_events(on_host: None) -> None:
    device = XpuOnHost()
    device.open(0)
    host, there = torch.arange(4.0), torch.empty(4)
    device.h2d(there, host).wait()
    back = device.host_empty((4,), torch.float32)
    event = device.d2h(back, there)
    event.synchronize()
    assert event.done()
    assert back.equal(host)
    device.synchronize()


def test_what_runs_aside_has_a_stream_of_its_own(on_host: None) -> None:
    device = XpuOnHost()
    device.open(0)
    before = torch.xpu.current_stream()
    streams = []
    for _ in range(2):
        with device.aside():
            streams.append(torch.xpu.current_stream())
            assert device.record().done()
    assert streams[0] is streams[1] is not before
    assert torch.xpu.current_stream() is before


def test_an_engine_on_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, on_host: None) -> None:
    """The text of the CPU, through this device's copies, events, kernels, and a stream aside for what is swapped; depth
    1, as an accelerator has."""
    install_plugin(monkeypatch, tmp_path, "xpu_on_host", (HERE / "xpu_on_host.py").read_text())
    prompts = [list(range(first, first + 30)) for first in (40, 90, 140, 190)]
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    roomy = {"dtype": "float32", "fallback": "allow", "block_size": 4, "max_model_len": 64, "num_kv_blocks": 80}
    few = {**roomy, "num_kv_blocks": 25, "swap_space": 0.01}
    texts = []
    for device, settings in (("cpu", roomy), ("xpu_on_host", few)):
        with LLM(str(induction_path()), device=device, **settings) as llm:
            texts.append([output.token_ids for output in llm.generate(prompts, params)])
            plan, seen = llm.plan, llm.engine.inspect()
    assert texts[0] == texts[1]
    assert seen.num_swapped > 1
    assert {b.row for b in plan.bindings if b.provider == "xpu"} == {"linear", "rms_norm", "add_rms_norm"}
    assert plan.pipeline_depth == 1
    assert plan.certificate.startswith("none; ")
