"""The examination of linear, pack_weight and quant_act: oracles, kernels, and the catalogue of wrong and right ones."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from conformance.case import Case
from conformance.draw import Draw, exact
from conformance.exam import examine, pairs
from conformance.kernels import all_exams
from conformance.mutants.numbers import cut, rounded, toward_zero
from conformance.oracle import gemm, quant
from conformance.target import host_target, open_target
from core.kernels.bind import REFERENCE
from core.kernels.reference import dense
from core.kernels.row import Implementation
from core.kernels.schemes import Q41Weight, Q80Weight
from core.plugin.facts import Support
from tests.conformance.examined import (  # noqa: F401  tests, run for ROWS
    SEED,
    failures,
    test_another_device_passes,
    test_right_kernels_pass,
    test_wrong_kernels_are_refused,
)

ROWS = ("linear", "pack_weight", "quant_act")


def test_the_oracle_multiplies() -> None:
    x, w, bias = np.array([[1.0, 2.0]]), np.array([[3.0, 4.0], [5.0, -6.0], [0.0, 1.0]]), np.array([0.5, 0.0, 1.0])
    assert gemm.linear(x, w, bias).tolist() == [[11.5, -7.0, 3.0]]
    assert gemm.linear(x, w, None).tolist() == [[11.0, -7.0, 2.0]]


def test_the_oracle_dequantises_as_gguf_does() -> None:
    draw = Draw(b"weight")
    codes = draw.integers(0, 256, 3, 2, 16).astype(np.uint8)
    scale, minimum = draw.normal(3, 2).astype(np.float16), draw.normal(3, 2).astype(np.float16)
    blocks = np.concatenate((scale[..., None].view(np.uint8), minimum[..., None].view(np.uint8), codes), -1)
    wanted = gguf.quants.dequantize(blocks.reshape(3, -1), gguf.GGMLQuantizationType.Q4_1)
    weight = Q41Weight(torch.from_numpy(codes.reshape(3, -1)), torch.from_numpy(scale), torch.from_numpy(minimum))
    parts = (exact(part) for part in (weight.single_codes(), weight.scale, weight.minimum))
    assert gemm.q4_1(*parts, dtype="float32")[0] == pytest.approx(wanted, rel=1e-6)


def test_the_oracle_dequantises_8_bits_as_gguf_does() -> None:
    draw = Draw(b"weight")
    codes, scale = draw.integers(-128, 128, 3, 2, 32).astype(np.int8), draw.normal(3, 2).astype(np.float16)
    blocks = np.concatenate((scale[..., None].view(np.uint8), codes.view(np.uint8)), -1)
    wanted = gguf.quants.dequantize(blocks.reshape(3, -1), gguf.GGMLQuantizationType.Q8_0)
    weight = Q80Weight(torch.from_numpy(codes.reshape(3, -1)), torch.from_numpy(scale))
    assert gemm.q8_0(exact(weight.single_codes()), exact(weight.scale), "float32")[0] == pytest.approx(wanted, rel=1e-6)
    assert weight.dequantised().numpy() == pytest.approx(wanted, rel=1e-6)


def test_the_oracle_quantises() -> None:
    """Ties to even where the scale is a power of two; either code where rounding of the scale decides."""
    codes, allowed, scale = quant.quant_act(np.array([[127.0, 2.5, -3.5, 0.4], [0, 0, 0, 0], [254, -1, 3, 250]]))
    assert codes.tolist() == [[127, 2, -4, 0], [0, 0, 0, 0], [127, 0, 2, 125]]
    assert scale.tolist() == [1, 0, 2]
    assert not allowed.any()
    codes, allowed, _ = quant.quant_act(np.array([[12.7 * 2, 2.5 * 0.2, 0.05]]))
    assert allowed.tolist() == [[0, 1, 0]]


@pytest.mark.parametrize(
    "dtype", [*(pytest.param(d, marks=pytest.mark.heavy) for d in ("float16", "float32")), "bfloat16"]
)
@pytest.mark.parametrize("family", ["lattice", "cancel", "overflow"])
def test_exact_families_are_exact_in_any_order(family: str, dtype: str) -> None:
    """Sums of every part of the terms above 0, the largest that any order has on the way, fit float32."""
    exam = all_exams()["linear"]
    cases = [c for c in exam.cases() if c.family == family and c["dtype"] == dtype]
    assert bool(cases) == ((family, dtype) != ("overflow", "float32"))
    for case in cases:
        inputs = exam.inputs(case, Draw(b"seed"))
        w = inputs["w"] if case["scheme"] == "dense" else inputs["w"].dequantised()
        x, w = exact(inputs["x"]), exact(w)
        unit = np.abs(x)[x != 0].min() * np.abs(w)[w != 0].min() / (16 if case["scheme"] == "q4_1" else 1)
        most = np.clip(x, 0, None) @ np.clip(w, 0, None).T + np.clip(-x, 0, None) @ np.clip(-w, 0, None).T
        assert most.max() / unit < 2**24
        y = exam.expect(case, inputs, {})["y"].bits
        assert y is not None
        infinite = y.isinf().double().mean()
        assert 0.2 < infinite < 0.8 if family == "overflow" else infinite == 0
        if family == "lattice" and dtype != "float32" and case["rows"] > 2:
            assert (y.double() != torch.from_numpy(gemm.linear(x, w, None))).double().mean() > 0.1  # rounding shows


def test_numbers_are_cut_and_rounded() -> None:
    x = torch.tensor([1.75, -1.75, 1.0], dtype=torch.float64) + 2.0**-12
    assert toward_zero(x, torch.bfloat16).tolist() == [1.75, -1.7421875, 1.0]
    assert toward_zero(torch.tensor([1 + 2.0**-8 + 2.0**-9]), torch.bfloat16).tolist() == [1.0]
    assert cut(torch.tensor([1.9375, -1.9375]), 4).tolist() == [1.875, -1.875]
    assert rounded(torch.tensor([1.9375, 1.8125, 1.0]), 4).tolist() == [2.0, 1.875, 1.0]


@pytest.mark.parametrize("row", ["linear", "quant_act"])
def test_the_cpu_passes(row: str) -> None:
    target = open_target("cpu")
    assert target.providers(row) == (["cpu-native", "cpu", "cpu-invariant"] if row == "linear" else [REFERENCE])
    for provider in target.providers(row):
        assert not failures(row, target, provider)
    assert not failures(row, host_target(), REFERENCE)


@pytest.mark.parametrize("provider", ["cpu-native", "cpu"])
def test_the_cpu_packs(provider: str) -> None:
    assert not failures("pack_weight", open_target("cpu"), provider)


def test_limits_and_schemes_that_are_claimed_are_tried() -> None:
    """A kernel that is right up to 200 columns, claims 201, and a form of weights that nobody knows."""

    def narrow(x: torch.Tensor, handle: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        y = torch.nn.functional.linear(x, handle, bias)
        y[:, 200:] = 0
        return y

    support = Support(dtypes=frozenset({"float16"}), schemes=frozenset({"dense", "q3_7"}), max_n=201)
    exam, target = all_exams()["linear"], host_target(Implementation("linear", narrow, "narrow", support))
    claims = [case for case, _ in pairs(exam, target) if case.family == "claim"]
    results = [examine(exam, case, target, "narrow", SEED)[0] for case in claims]
    assert [(case["scheme"], case["n"], result.status) for case, result in zip(claims, results, strict=True)] == [
        ("dense", 201, "fail"),
        ("q3_7", 201, "error"),
    ]
    assert "q3_7" in results[1].message


def test_a_handle_is_read_by_the_provider_that_packed_it() -> None:
    def pack(w: torch.Tensor, *, scheme: str) -> tuple[str, torch.Tensor]:
        return "mine", dense.pack_weight(w, scheme=scheme)

    def multiply(x: torch.Tensor, handle: tuple[str, torch.Tensor], bias: torch.Tensor | None = None) -> torch.Tensor:
        assert handle[0] == "mine"
        return dense.linear(x, handle[1], bias)

    target = host_target(
        Implementation("linear", dense.linear, "first"),
        Implementation("pack_weight", pack, "second"),
        Implementation("linear", multiply, "second"),
    )
    case = Case.of("linear", "lattice", dtype="bfloat16", rows=3, n=4, k=64, bias=True, scheme="dense")
    for row, provider in (("linear", "first"), ("linear", "second"), ("pack_weight", "second")):
        assert examine(all_exams()[row], case, target, provider, SEED)[0].status == "pass", (row, provider)
