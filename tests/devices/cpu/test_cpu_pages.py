"""Memory for packed weights: one after another, apart from each other, and given back with the last one."""

import gc
from pathlib import Path

import pytest
import torch

from devices.cpu.native import pages
from devices.cpu.native.pages import Pages

HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def resident_kib(field: str) -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def test_tensors_lie_apart_and_keep_what_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "REGION_BYTES", 4096)
    given = Pages()
    shapes = [(3, 5), (0, 7), (1,), (100, 9), (2, 2, 700), (5000,), (1, 1)]  # one is larger than a region
    tensors = [given.empty(shape, torch.int32).fill_(i) for i, shape in enumerate(shapes)]
    for i, (tensor, shape) in enumerate(zip(tensors, shapes, strict=True)):
        assert tensor.shape == shape
        assert (tensor == i).all()
        assert tensor.data_ptr() % 64 == 0


def test_a_region_goes_back_with_its_last_weight() -> None:
    given = Pages()
    before = resident_kib("Rss")
    first, second = (given.empty((2**25,), torch.uint8) for _ in range(2))
    assert resident_kib("Rss") < before + 2**14  # nothing is taken for what was never touched
    first.fill_(1), second.fill_(2)
    del given, first
    gc.collect()
    assert (second == 2).all()
    assert resident_kib("Rss") > before + 2**15
    del second
    gc.collect()
    assert resident_kib("Rss") < before + 2**14


@pytest.mark.skipif(not HUGE.exists() or "[never]" in HUGE.read_text(), reason="this system has no huge pages")
def test_large_weights_lie_in_huge_pages() -> None:
    before = resident_kib("AnonHugePages")
    weight = Pages().empty((2**26,), torch.uint8).fill_(1)
    assert resident_kib("AnonHugePages") >= before + weight.numel() // 2048  # half: memory may be in pieces
