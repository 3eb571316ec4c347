"""The examination of linear, and of pack_weight, whose results linear alone reads.

Families whose results are exact, whatever the order of sums in float32 (check D):
lattice   integers, whose products need 13 bits and whose sums more than 11, scaled by powers of two
cancel    large opposite integers that leave a small sum, so that a narrower accumulator shows
overflow  sums of numbers above 0, about the largest that the dtype holds: what is beyond is infinite

Others: in "uniform" all terms are above 0, so that one that is missing shows; "wide" has magnitudes far apart between
rows, columns and along K; "subnormal" has x below the least normal number; in "poison" the last row of x and of the
weight are NaN, and no other result may be. A weight of codes is judged as the weight that they stand for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from conformance.case import Case
from conformance.draw import Draw, Floats, exact, stored
from conformance.judge import Expected
from conformance.kernels.by_token import RMS_DTYPES, VIEWS, ByToken, claimed, laid, random_cases, with_dtypes
from conformance.oracle import gemm
from conformance.row_exam import Inputs, Outputs
from conformance.target import Bench
from core.errors import ConfigError
from core.kernels.schemes import BLOCK, Q41Weight, Q80Weight, Quantised
from core.plugin.facts import Need, Support

_EXACT = ("lattice", "cancel", "overflow")
_WIDE = {"float32": 30, "bfloat16": 30, "float16": 2}
_SUBNORMAL = {"float32": 2.0**-130, "bfloat16": 2.0**-130, "float16": 2.0**-17}
_EDGE = {"bfloat16": (2.0**57, 2.0**56), "float16": (2.0, 1.0)}
"""Of x and of w, times integers whose sums are about 2^15: on both sides of the largest number."""

_LARGE = ((4, 32, 14336, 0), (1100, 40, 96, 1), (3, 5003, 64, 0))
"""One size at a time as large as models have them."""

_SHAPES = {
    "normal": ((1, 64, 64, 0), (7, 33, 576, 1), (64, 130, 1025, 0), (3, 129, 4100, 1), (300, 65, 257, 1), *_LARGE),
    "uniform": ((5, 70, 4100, 0), (33, 40, 4097, 1)),
    "lattice": ((8, 48, 512, 0), (2, 17, 4100, 1), (96, 64, 300, 1), (2, 17, 9001, 1)),
    "cancel": ((4, 40, 700, 0), (33, 64, 2051, 1), (3, 24, 9001, 1)),
    "overflow": ((16, 24, 600, 0), (40, 33, 601, 0)),
    "wide": ((9, 65, 320, 1), (40, 64, 1030, 0)),
    "subnormal": ((4, 33, 200, 0),),
    "edge": ((0, 64, 64, 1), (1, 1, 1, 1), (1, 1, 65, 0), (2, 65, 1, 1), (257, 3, 8, 0)),
    "poison": ((5, 40, 96, 1),),
    "invariant": ((37, 70, 300, 1), (130, 64, 1100, 0)),
    "races": ((64, 96, 512, 1),),
    **dict.fromkeys(VIEWS, ((17, 40, 104, 1), (9, 33, 75, 0))),
}
"""Family -> tokens, N, K, and whether there is a bias."""

_BLOCK_SHAPES = {
    "normal": ((1, 64, 64, 0), (7, 33, 576, 1), (64, 130, 1024, 0), (130, 65, 256, 1), *_LARGE),
    "uniform": ((5, 70, 4096, 0),),
    "lattice": ((8, 48, 512, 0), (140, 48, 512, 0)),
    "cancel": ((4, 40, 736, 0), (3, 24, 9216, 0)),
    "edge": ((0, 64, 64, 1), (1, 1, 32, 1)),
    "poison": ((5, 40, 96, 1),),
    "invariant": ((37, 70, 320, 1),),
    "races": ((64, 96, 512, 1),),
    **dict.fromkeys(VIEWS, ((17, 40, 96, 1),)),
}

_SCHEMES = {"dense": _SHAPES, "q4_1": _BLOCK_SHAPES, "q8_0": _BLOCK_SHAPES}


class LinearExam(ByToken):
    """y[T, N] = x[T, K] times the packed weight [N, K], transposed, plus bias[N]."""

    row = "linear"

    def cases(self) -> Iterator[Case]:
        for scheme, shapes in _SCHEMES.items():
            cases = [self._case(f, shape, scheme) for f, some in shapes.items() for shape in some]
            most = {"rows": 150, "n": 160, "k": 1600}
            for case in with_dtypes(cases + random_cases(self.row, **most, bias=True, scheme=scheme)):
                if (case.family, case["dtype"]) != ("overflow", "float32"):  # there it is accumulators that overflow
                    yield case

    def claims(self, support: Support) -> Iterator[Case]:
        for scheme in sorted(support.schemes or ("dense",)):
            max_n = support.max_n if scheme in _SCHEMES else support.max_n or 96  # so that an unknown one fails
            limits = {"rows": support.max_tokens, "n": max_n, "k": support.max_k}
            yield from claimed(support, self.row, limits, rows=2, n=64, k=64, bias=True, scheme=scheme)

    def _case(self, family: str, shape: tuple[int, int, int, int], scheme: str) -> Case:
        rows, n, k, bias = shape
        return Case.of(self.row, family, rows=rows, n=n, k=k, bias=bool(bias), scheme=scheme)

    def need(self, case: Case) -> Need:
        return replace(super().need(case), n=case["n"], k=case["k"], scheme=case["scheme"])

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        rows, n, k = case["rows"], case["n"], case["k"]
        if case.family == "random":
            rows, n, k = (draw.integer(1, most + 1) for most in (rows, n, k))
            k = k if case["scheme"] == "dense" else -(-k // BLOCK) * BLOCK
        dtype = case["dtype"]
        if case["scheme"] not in _SCHEMES:
            raise ConfigError(f"scheme {case['scheme']!r} is claimed: this suite examines {', '.join(_SCHEMES)} only")
        make = {"dense": self._dense, "q4_1": self._q4_1, "q8_0": self._q8_0}[case["scheme"]]
        x, w, bias = make(case, draw, rows, n, k)
        if case.family == "poison":
            x[-1] = float("nan")
        return {"x": stored(x, dtype), "w": w, "bias": stored(bias, dtype) if case["bias"] else None}

    def _dense(self, case: Case, draw: Draw, rows: int, n: int, k: int) -> tuple[Floats, torch.Tensor, Floats]:
        x, w, bias = _values(case, draw, rows, n, k)
        if case.family == "poison":
            w[-1] = float("nan")
        return x, stored(w, case["dtype"]), bias

    def _q4_1(self, case: Case, draw: Draw, rows: int, n: int, k: int) -> tuple[Floats, Q41Weight, Floats]:
        codes = torch.from_numpy(draw.integers(0, 256, n, k // 2).astype(np.uint8))
        x, bias = draw.normal(rows, k), draw.normal(n)
        blocks = (n, k // BLOCK)
        scale = 0.01 + draw.uniform(*blocks) / 8
        minimum = -scale * (7.5 + draw.normal(*blocks))
        if case.family == "uniform":
            x, minimum = draw.uniform(rows, k), draw.uniform(*blocks)
        if case.family == "lattice":
            x = _integers(draw, 8, rows, k)
            scale, minimum = draw.integers(1, 4, *blocks) / 16.0, draw.integers(-24, 25, *blocks) / 16.0
        if case.family == "cancel":
            half = k // BLOCK // 3 * BLOCK
            x = _integers(draw, 90, rows, k)
            x[:, half : 2 * half] = -x[:, :half]
            codes[:, half // 2 : half] = codes[:, : half // 2]  # two codes in a byte
            scale[:], minimum[:] = 0.25, -2
        if case.family == "poison":
            scale[-1] = np.nan
        return x, Q41Weight(codes, stored(scale, "float16"), stored(minimum, "float16")), bias

    def _q8_0(self, case: Case, draw: Draw, rows: int, n: int, k: int) -> tuple[Floats, Q80Weight, Floats]:
        x, bias, codes = draw.normal(rows, k), draw.normal(n), draw.integers(-128, 128, n, k)
        blocks = (n, k // BLOCK)
        scale = draw.normal(*blocks) / 64
        if case.family == "uniform":
            x, codes, scale = draw.uniform(rows, k), np.maximum(codes, ~codes), draw.uniform(*blocks) / 64
        if case.family == "lattice":  # powers of two, so that weights fit 8 bits
            x, scale = _integers(draw, 8, rows, k), np.exp2(draw.integers(-6, -2, *blocks).astype(np.float64))
        if case.family == "cancel":
            half = k // BLOCK // 3 * BLOCK
            x, codes = _integers(draw, 90, rows, k), draw.integers(-16, 17, n, k)
            x[:, half : 2 * half] = -x[:, :half]
            codes[:, half : 2 * half] = codes[:, :half]
            scale[:] = 0.25
        if case.family == "poison":
            scale[-1] = np.nan
        return x, Q80Weight(torch.from_numpy(codes.astype(np.int8)), stored(scale, "float16")), bias

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        kernel = bench.bind("linear")
        w = inputs["w"]
        if isinstance(w, torch.Tensor):
            raw: Any = laid(bench, "w", w, case.family)
        else:
            raw = type(w)(*(bench.put(name, part) for name, part in zip(w._fields, w, strict=True)))
        handle = bench.bind("pack_weight", scheme=case["scheme"])(raw)
        bias = None if inputs["bias"] is None else bench.put("bias", inputs["bias"])
        y = bench.get(kernel(laid(bench, "x", inputs["x"], case.family), handle, bias))
        return {"y": y[:-1, :-1] if case.family == "poison" else y}

    def doubled(self, inputs: Inputs) -> Inputs:
        bias = inputs["bias"]
        return {**inputs, "x": inputs["x"] * 2, "bias": None if bias is None else bias * 2}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        dtype, w_error = case["dtype"], None
        x, bias = exact(inputs["x"]), None if inputs["bias"] is None else exact(inputs["bias"])
        if isinstance(inputs["w"], torch.Tensor):
            w = exact(inputs["w"])
        else:
            w, w_error = _of_codes(inputs["w"], dtype)
        if case.family == "poison":
            x, w, bias = x[:-1], w[:-1], bias[:-1] if bias is not None else None
            w_error = None if w_error is None else w_error[:-1]
        y = gemm.linear(x, w, bias)
        if case.family in _EXACT:
            return {"y": Expected(bits=stored(y, dtype))}
        bound = gemm.linear_bound(y, x, w, bias, dtype, w_error)
        # Rounded weights and scales give all tokens the same errors, so neither B nor C applies to them.
        alike = case.family not in ("wide", "subnormal", "invariant") and w_error is None and dtype in RMS_DTYPES
        return {"y": Expected(value=y, bound=bound, dtype=dtype, rms=alike, bias=alike)}


class PackWeightExam(LinearExam):
    """Seen through linear, which the same provider has: a weight in another order, or rounded, gives other products."""

    row = "pack_weight"

    def cases(self) -> Iterator[Case]:
        families = ("normal", "lattice", "edge", *VIEWS)
        for scheme, shapes in _SCHEMES.items():
            yield from with_dtypes([self._case(f, shape, scheme) for f in families for shape in shapes[f]])


def _of_codes(w: Quantised, dtype: str) -> tuple[Floats, Floats]:
    """The weight [N, K] that codes stand for, and by how much it may be off."""
    codes, scale = exact(w.single_codes()), exact(w.scale)
    if isinstance(w, Q41Weight):
        return gemm.q4_1(codes, scale, exact(w.minimum), dtype)
    return gemm.q8_0(codes, scale, dtype)


def _values(case: Case, draw: Draw, rows: int, n: int, k: int) -> tuple[Floats, Floats, Floats]:
    """x [T, K], w [N, K] and bias [N]."""
    family, dtype = case.family, case["dtype"]
    if family in _EXACT:
        return _exact_values(family, draw, dtype, rows, n, k)
    if family == "uniform":
        return draw.uniform(rows, k), draw.uniform(n, k), draw.uniform(n)
    x, w, bias = draw.normal(rows, k), draw.normal(n, k), draw.normal(n) * 8
    if family == "wide":
        most = _WIDE[dtype]
        along = 2.0 ** draw.integers(-most, most + 1, k)
        of_row, of_column = (2.0 ** draw.integers(-most, most + 1, size) for size in (rows, n))
        x, w = np.asarray(x * of_row[:, None] * along), np.asarray(w * of_column[:, None] / along)
        bias = np.asarray(bias * of_column)
    if family == "invariant":  # large terms that cancel: the order of the sum shows in the result
        half = k // 3
        x[:, half : 2 * half], w[:, half : 2 * half] = x[:, :half], -w[:, :half]
        x[:, : 2 * half] *= 64
        w[:, : 2 * half] *= 64
    if family == "subnormal":
        x, w = x * _SUBNORMAL[dtype], w * 16
    return x, w, bias


def _integers(draw: Draw, most: int, *shape: int) -> Floats:
    """From -most to most."""
    return draw.integers(-most, most + 1, *shape).astype(np.float64)


def _exact_values(family: str, draw: Draw, dtype: str, rows: int, n: int, k: int) -> tuple[Floats, Floats, Floats]:
    if family == "overflow":  # sums of 600 numbers, of a mean that is different for each row
        few = draw.integers(1, 6, rows, k) * draw.integers(1, 13, rows, 1), draw.integers(1, 6, n, k)
        of_x, of_w = _EDGE[dtype]
        return np.asarray(few[0] * of_x, np.float64), np.asarray(few[1] * of_w, np.float64), np.zeros(n)
    x, w, bias = _integers(draw, 90, rows, k), _integers(draw, 90, n, k), _integers(draw, 200, n)
    if family == "cancel":
        num = min(512, k // 4 * 2)
        x[:, :num], w[:, : num // 2], w[:, num // 2 : num] = 64, 4, -4
        x[:, num:], w[:, num:] = np.sign(x[:, num:]), np.sign(w[:, num:])
        order = draw.permutation(num)
        w[:, :num] = w[:, order] if rows % 2 else w[:, :num]  # in turns, or one after the other
        return x, w, np.rint(bias / 64)
    return x / 16, w / 16, bias / 16


EXAMS = (LinearExam(), PackWeightExam())
