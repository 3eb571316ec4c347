"""The examination of act_mul, scale_add, softcap and rope: oracles, kernels, and the catalogue for them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from conformance.draw import Draw
from conformance.exam import examine, pairs
from conformance.kernels import all_exams
from conformance.oracle import elementwise, rope
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

ROWS = ("act_mul", "scale_add", "softcap", "rope")


@pytest.mark.parametrize("act", list(elementwise.ACTS))
def test_the_oracle_activates(act: str) -> None:
    x = Draw(b"x").normal(200) * 3
    given = torch.from_numpy(x)
    wanted = {"silu": F.silu(given), "gelu": F.gelu(given), "gelu_tanh": F.gelu(given, approximate="tanh")}[act]
    assert elementwise.ACTS[act](x) == pytest.approx(wanted.numpy(), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("act", list(elementwise.ACTS))
def test_the_oracle_has_limits_far_out(act: str) -> None:
    far = elementwise.ACTS[act](np.array([-1e30, -1e4, 1e4, 1e30]))
    assert far.tolist() == [0, 0, 1e4, 1e30]


def test_the_oracle_caps_and_adds() -> None:
    assert elementwise.softcap(np.array([-1e38, 0.0, 30.0]), 30.0) == pytest.approx([-30, 0, 30 * np.tanh(1.0)])
    assert elementwise.scale_add(np.array([2.0]), np.array([1.0]), -3.0).tolist() == [-5]


def test_the_oracle_turns_pairs_as_complex_numbers() -> None:
    draw = Draw(b"rope")
    x, angles = draw.normal(5, 3, 8), draw.normal(5, 4)
    y, terms = rope.rope(x, np.concatenate((np.cos(angles), np.sin(angles)), -1))
    turned = (x[..., :4] + 1j * x[..., 4:]) * np.exp(1j * angles)[:, None]
    assert y == pytest.approx(np.concatenate((turned.real, turned.imag), -1), abs=1e-12)
    assert (terms >= np.abs(y) - 1e-12).all()


def test_angles_are_multiplied_by_positions() -> None:
    angles, positions = np.array([0.7, 1e-3]), np.array([0.0, 1.0, 12345.0, 1048577.0])
    cos, sin = rope.turns((np.cos(angles), np.sin(angles)), positions)
    assert cos == pytest.approx(np.cos(np.outer(positions, angles)), abs=1e-8)
    assert sin == pytest.approx(np.sin(np.outer(positions, angles)), abs=1e-8)


def test_tables_of_turns_have_far_positions() -> None:
    exam = all_exams()["rope"]
    case = next(c for c in exam.cases() if c.family == "turns" and c["dtype"] == "float32" and c["turned"] == 64)
    cos, sin = exam.inputs(case, Draw(b"seed"))["cos_sin"].double().chunk(2, -1)
    assert (cos**2 + sin**2).sub(1).abs().max() < 1e-6
    assert cos[1].tolist() == [1.0] * 32  # position 0
    assert cos[:, 0].std() > 0.3
    assert sin[2, -1] < 1e-4  # a slow angle, at position 1


@pytest.mark.parametrize("row", ROWS)
def test_the_cpu_passes(row: str) -> None:
    target = open_target("cpu")
    for provider in target.providers(row):
        assert not failures(row, target, provider)
    assert not failures(row, host_target(), REFERENCE)


@pytest.mark.parametrize("act", list(elementwise.ACTS))
def test_the_cpu_is_invariant_in_every_activation(act: str) -> None:
    exam, target = all_exams()["act_mul"], open_target("cpu")
    cases = [c for c in exam.cases() if c.family == "invariant" and c["act"] == act]
    assert len(cases) == 3
    for case in cases:
        assert examine(exam, case, target, "cpu", SEED)[0].status == "pass"


def test_head_sizes_that_are_claimed_are_tried() -> None:
    """A kernel that leaves heads of more than 256 as they are, and claims 320."""

    def short(x: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
        return dense.rope(x, cos_sin) if x.shape[-1] <= 256 else x.clone()

    support = Support(dtypes=frozenset({"bfloat16"}), head_sizes=frozenset({32, 40, 64, 256, 320}))
    exam, target = all_exams()["rope"], host_target(Implementation("rope", short, "short", support))
    results = [(case, examine(exam, case, target, "short", SEED)[0].status) for case, _ in pairs(exam, target)]
    assert {(case.family, case["size"]) for case, status in results if status == "fail"} == {("claim", 320)}
    assert [status for case, status in results if case.family == "claim" and case["size"] == 32] == ["pass"]
    assert {status for case, status in results if case["turned"] == 80} == {"unsupported"}
