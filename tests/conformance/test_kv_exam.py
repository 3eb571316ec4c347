"""The examination of the KV pool: its oracle, what layouts declare, kernels, and the catalogue of wrong ones."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from conformance.draw import Draw
from conformance.judge import judge
from conformance.kernels.pool import kept, magnitudes, untouched
from conformance.mutants.layouts import FORMS, Codes
from conformance.oracle import move
from conformance.target import host_target, open_target
from core.kernels.bind import REFERENCE
from core.kernels.reference import kv
from core.kernels.table import KV_BUNDLE
from devices.cpu import kv as cpu_kv
from tests.conformance.examined import (  # noqa: F401  tests, run for ROWS
    failures,
    test_right_kernels_pass,
    test_wrong_kernels_are_refused,
)
from tests.plugins import install_hostile

ROWS = ("kv_layout", "kv_write", "kv_gather", "kv_export", "kv_import", "kv_copy", "kv_swap")


def test_rows() -> None:
    assert {*ROWS, "attn_plan", "attn_paged"} == set(KV_BUNDLE)


def test_the_oracle_writes_slots() -> None:
    pool = np.zeros((2, 3, 1, 1), np.uint8)
    x = np.array([7, 8, 9], np.uint8).reshape(3, 1, 1)
    assert move.write_slots(pool, [4, -1, 0], x).flatten().tolist() == [9, 0, 0, 0, 7, 0]


def test_what_a_layout_declares_is_what_it_is_held_to() -> None:
    x = torch.tensor([[1.0, -0.5, 0.0]])
    exact = kept(x, {"kv_error": torch.tensor([0.0])}, "float32")
    within = kept(x, {"kv_error": torch.tensor([0.125])}, "float32")
    assert exact is not None
    assert exact.bits is x
    assert within is not None
    assert within.bound is not None
    assert within.bound[0] == pytest.approx([0.125] * 3, rel=1e-6)
    assert kept(x / 0, {"kv_error": torch.tensor([0.125])}, "float32") is None


def test_untouched_pages_are_told_from_others() -> None:
    before = torch.arange(6.0).view(2, 3)  # pages 1, 2, 3 along axis 1
    after = before.clone()
    after[:, 1] = 9
    outputs = {"plane0.before": before, "plane0": after, "plane0.axis": torch.tensor([1])}
    wrong, right = untouched(outputs, ())["plane0"].bits, untouched(outputs, [2])["plane0"].bits
    assert wrong is not None
    assert wrong.equal(before)
    assert right is not None
    assert right.equal(after)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_hardest_numbers_are_finite_and_of_every_kind(dtype: str) -> None:
    x = magnitudes(Draw(b"seed"), dtype, 200, 2, 16)
    rows = x.flatten(0, 1).float().abs()
    info = torch.finfo(x.dtype)
    assert x.isfinite().all()
    assert (rows == info.max).all(1).any()
    assert (rows == 0).all(1).any()
    assert ((rows.amax(1) < info.tiny) & (rows.amax(1) > 0)).any()
    assert ((rows > 0).sum(1) == 1).any()


@pytest.mark.parametrize("row", ROWS)
def test_the_cpu_passes(row: str) -> None:
    target = open_target("cpu")
    assert target.providers(row) == ["cpu-native", "cpu", "cpu-invariant"]
    for provider in target.providers(row):
        assert not failures(row, target, provider)
    assert not failures(row, host_target(), REFERENCE)


def test_narrow_codes_pass_within_what_they_declare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install_hostile(monkeypatch, tmp_path / "plugin")
    target = open_target("hostile")
    for row in ROWS:
        assert not failures(row, target, "hostile")


def test_what_one_provider_exports_others_import() -> None:
    """From each layout to each, through the canonical form, bit by bit where no layout stores codes."""
    sizes = {"num_kv_heads": 2, "head_size": 8, "page_tokens": 4, "dtype": "bfloat16"}
    ours = {"kv_layout": kv.kv_layout, "kv_write": kv.kv_write, "kv_gather": kv.kv_gather}
    cpu = {"kv_layout": cpu_kv.kv_layout, "kv_write": cpu_kv.kv_write, "kv_gather": cpu_kv.kv_gather}
    providers = [ours, cpu, Codes().rows, *(form.rows for form in FORMS)]
    canonical = Draw(b"pages").tensor("bfloat16", 2, 2, 3, 4, 2, 8)
    pages = torch.tensor([4, 1, 3], dtype=torch.int32)
    for provider in providers:
        layout = provider["kv_layout"](**sizes)
        planes = [
            torch.zeros(s, dtype=getattr(torch, p.dtype)) for p, s in zip(layout.planes, layout.shapes(5), strict=True)
        ]
        layers = [tuple(planes), tuple(plane.clone() for plane in planes)]
        layers = partial(kv.kv_import, kv_write=provider["kv_write"])(layers, pages, canonical)
        made = partial(kv.kv_export, kv_gather=provider["kv_gather"])(layers, pages)
        wanted = kept(canonical, {"kv_error": torch.tensor([layout.kv_error])}, "bfloat16")
        assert wanted is not None
        assert all(finding.ok for finding in judge("canonical", wanted, made))
        canonical = made
