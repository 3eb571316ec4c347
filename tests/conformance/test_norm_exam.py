"""The examination of rms_norm and add_rms_norm: its oracle, kernels, and the catalogue of wrong and right ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from conformance.draw import Draw
from conformance.exam import examine, pairs
from conformance.kernels import all_exams
from conformance.kernels.norm import _midpoints
from conformance.oracle import norm
from conformance.target import host_target, open_target
from core.kernels.bind import REFERENCE
from core.kernels.reference import dense
from core.kernels.row import Implementation
from core.plugin.facts import Support
from tests.conformance.examined import (  # noqa: F401  tests, run for ROWS
    SEED,
    failures,
    test_another_device_passes,
    test_right_kernels_pass,
    test_wrong_kernels_are_refused,
)

ROWS = ("rms_norm", "add_rms_norm")


def test_the_oracle_norms() -> None:
    x, w = Draw(b"x").normal(5, 33), Draw(b"w").normal(33)
    wanted = torch.nn.functional.rms_norm(torch.from_numpy(x), (33,), torch.from_numpy(w), 1e-3).numpy()
    assert norm.rms_norm(x, w, 1e-3) == pytest.approx(wanted, rel=1e-12)
    assert norm.rms_norm(np.array([[3.0, -4.0]]), np.array([1.0, 2.0]), 0.0)[0] == pytest.approx(
        [3 / 12.5**0.5, -8 / 12.5**0.5]
    )


def test_two_roundings_are_within_the_bound_and_nearly_all_of_it() -> None:
    x, w = Draw(b"x").tensor("bfloat16", 200, 64), Draw(b"w").tensor("bfloat16", 64)
    y64 = norm.rms_norm(x.double().numpy(), w.double().numpy(), 1e-5)
    error = np.abs(dense.rms_norm(x, w, eps=1e-5).double().numpy() - y64)
    used = (error / norm.rms_norm_bound(y64, w.double().numpy(), "bfloat16")).max()
    assert 0.85 < used <= 1


@pytest.mark.parametrize(("dtype", "u"), [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
def test_midpoints_are_rounded_upwards_by_nearly_all_there_is(dtype: str, u: float) -> None:
    x, residual = (torch.from_numpy(part) for part in _midpoints(Draw(b"seed"), u, 50, 64))
    exact = x + residual
    stored = exact.to(getattr(torch, dtype)).double()
    big = residual > 0
    assert 100 < big.sum() < 500
    assert ((stored - exact)[big] > 0.85 * u).all()


@pytest.mark.parametrize("row", ROWS)
def test_the_cpu_passes(row: str) -> None:
    target = open_target("cpu")
    assert target.providers(row) == ["cpu-native", "cpu"]
    for provider in target.providers(row):
        assert not failures(row, target, provider)
    assert not failures(row, host_target(), REFERENCE)


def test_a_limit_that_is_claimed_is_tried() -> None:
    """A kernel that is right up to 9,000 columns, which no case of all devices goes beyond, and claims 9,001."""

    def short(x: torch.Tensor, w: torch.Tensor, *, eps: float) -> torch.Tensor:
        y = dense.rms_norm(x, w, eps=eps)
        y[..., 9000:] = 0
        return y

    support = Support(dtypes=frozenset({"bfloat16"}), max_k=9001, max_tokens=64)
    exam, target = all_exams()["rms_norm"], host_target(Implementation("rms_norm", short, "short", support))
    results = [(case, examine(exam, case, target, "short", SEED)[0].status) for case, _ in pairs(exam, target)]
    assert {case.family for case, status in results if status == "fail"} == {"claim"}
    assert [status for case, status in results if case.family == "claim" and case["rows"] == 64] == ["pass"]
    assert {status for case, status in results if case["rows"] > 64} == {"unsupported"}
