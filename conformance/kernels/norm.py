"""The examination of rms_norm and add_rms_norm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from conformance.bounds import ROUNDOFF
from conformance.case import Case
from conformance.draw import Draw, Floats, exact, stored
from conformance.judge import Expected
from conformance.kernels.by_token import (
    MANY_TIMES,
    RMS_DTYPES,
    VIEWS,
    ByToken,
    claimed,
    laid,
    random_cases,
    with_dtypes,
)
from conformance.oracle import norm
from conformance.oracle.elementwise import scale_add, scale_add_bound
from conformance.row_exam import Inputs, Outputs
from conformance.target import Bench
from core.plugin.facts import Need, Support

_SCALES = {"small": 1e-3, "large": 300.0, "zeros": 0.0}
_TINY = {"float32": 2.0**-60, "bfloat16": 2.0**-60, "float16": 2.0**-18}
_HUGE = {"float32": 2.0**56, "bfloat16": 2.0**56, "float16": 2.0**13}
"""As far as squares, and sums of them, stay normal numbers of float32."""

_SPREAD = 1.37
"""Not near a power of two: a row whose rms is nearly 1 keeps its rounded numbers, and all are off to the same side."""

_EPS = (1e-5, 1e-6, 1e-3)
_EDGES = ((0, 64), (1, 1), (300, 2), (1, 8192), (1100, 24), (3, 1537))


def _draw_x(case: Case, draw: Draw, *shape: int) -> Floats:
    dtype = case["dtype"]
    x = draw.normal(*shape) * _SPREAD
    if case.family == "offset_mean":
        return np.asarray(x + 3)
    if case.family == "spike":  # one number is most of the sum
        x[..., shape[-1] // 2] = 200
        return x
    return np.asarray(x * {**_SCALES, "tiny": _TINY[dtype], "huge": _HUGE[dtype]}.get(case.family, 1.0))


def _draw_w(case: Case, draw: Draw, size: int) -> Floats:
    if case.family == "weights":
        return np.asarray(draw.normal(size) * 2.0 ** draw.integers(-4, 5, size))
    return np.asarray(1 + draw.normal(size) / 4)


def _sizes(case: Case, draw: Draw) -> tuple[int, int, float]:
    """Tokens, columns and eps."""
    if case.family == "random":
        return draw.integer(1, case["rows"] + 1), draw.integer(2, case["k"] + 1), _EPS[draw.integer(0, len(_EPS))]
    return case["rows"], case["k"], case["eps"]


class RMSNormExam(ByToken):
    """y[..., K] = x / sqrt(mean(x^2) + eps) * w.

    Small inputs tell whether eps is inside the root; large ones, whether squares are summed in the stored dtype; odd
    sizes, whether a padded row is counted; a mean that is not 0, whether it is subtracted.
    """

    row = "rms_norm"

    def cases(self) -> Iterator[Case]:
        sizes = ((70, 64), (7, 577), (33, 2880))
        families = ("normal", "small", "large", "zeros", "tiny", "huge", "offset_mean", "spike", "weights")
        cases = [Case.of(self.row, f, rows=r, k=k, eps=1e-5) for f in families for r, k in sizes]
        cases += [Case.of(self.row, "small", rows=7, k=300, eps=eps) for eps in (1e-6, 1e-3)]
        cases += [Case.of(self.row, "edge", rows=r, k=k, eps=1e-6) for r, k in _EDGES]
        cases += [Case.of(self.row, f, rows=9, k=k, eps=1e-5) for f in VIEWS for k in (128, 321)]
        cases += [Case.of(self.row, "heads", rows=11, k=k, heads=3, eps=1e-6) for k in (64, 80)]
        cases += [Case.of(self.row, "poison", rows=6, k=200, eps=1e-5)]
        cases += [Case.of(self.row, "invariant", rows=r, k=k, eps=1e-5) for r, k in ((13, 576), (70, 2049))]
        cases += [Case.of(self.row, "races", rows=64, k=1000, eps=1e-5)]
        cases += [Case.of(self.row, "races", rows=9, k=130, eps=1e-5, times=MANY_TIMES)]
        yield from with_dtypes(cases + random_cases(self.row, rows=69, k=3000))

    def claims(self, support: Support) -> Iterator[Case]:
        yield from claimed(support, self.row, {"rows": support.max_tokens, "k": support.max_k}, rows=2, k=64, eps=1e-5)

    def need(self, case: Case) -> Need:
        return replace(super().need(case), k=case["k"])

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        rows, size, eps = _sizes(case, draw)
        shape = (rows, case["heads"], size) if case.family == "heads" else (rows, size)
        x = stored(_draw_x(case, draw, *shape), case["dtype"])
        if case.family == "poison":
            x[-1] = float("nan")
        return {"x": x, "w": stored(_draw_w(case, draw, size), case["dtype"]), "eps": eps}

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        kernel = bench.bind(self.row, eps=inputs["eps"])
        if case.family == "heads":  # the middle ones of a token's heads, as of queries and keys
            x = inputs["x"]
            whole = torch.nn.functional.pad(x, (0, 0, 1, 2), value=float("nan"))
            x = bench.put("x", whole)[:, 1 : 1 + x.shape[1]]
        else:
            x = laid(bench, "x", inputs["x"], case.family)
        y = bench.get(kernel(x, bench.put("w", inputs["w"])))
        return {"y": y[:-1] if case.family == "poison" else y}

    def doubled(self, inputs: Inputs) -> Inputs:
        return {**inputs, "w": inputs["w"] * 2}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        x, w, dtype = exact(inputs["x"]), exact(inputs["w"]), case["dtype"]
        y = norm.rms_norm(x[:-1] if case.family == "poison" else x, w, inputs["eps"])
        bound = norm.rms_norm_bound(y, w, dtype)
        bias = case.family != "spike"
        return {"y": Expected(value=y, bound=bound, dtype=dtype, rms=dtype in RMS_DTYPES, bias=bias)}


class AddRMSNormExam(ByToken):
    """The norm of x + residual, and x + residual.

    The norm is judged from the sum that was stored, since that is rounded first: sums of family "midpoint" are rounded
    by the most, and all upwards, so the norm of sums that were not rounded shows. In family "parts" what the row is
    composed of is examined beside it, in the same way.
    """

    row = "add_rms_norm"
    may_change = ("x", "residual", "both")
    tokens = ("x", "residual")

    def cases(self) -> Iterator[Case]:
        sizes = ((70, 64), (33, 577), (9, 2880))
        families = ("normal", "small", "large", "zeros", "cancel", "midpoint", "weights", "parts")
        cases = [Case.of(self.row, f, rows=r, k=k, eps=1e-5) for f in families for r, k in sizes]
        cases += [Case.of(self.row, "edge", rows=r, k=k, eps=1e-6) for r, k in _EDGES]
        cases += [Case.of(self.row, f, rows=9, k=k, eps=1e-5) for f in (*VIEWS, "joined") for k in (128, 321)]
        cases += [Case.of(self.row, "poison", rows=6, k=200, eps=1e-5)]
        cases += [Case.of(self.row, "invariant", rows=r, k=k, eps=1e-5) for r, k in ((13, 576), (70, 2049))]
        cases += [Case.of(self.row, "races", rows=64, k=1000, eps=1e-5)]
        cases += [Case.of(self.row, "races", rows=9, k=130, eps=1e-5, times=MANY_TIMES)]
        yield from with_dtypes(cases + random_cases(self.row, rows=69, k=3000))

    def claims(self, support: Support) -> Iterator[Case]:
        yield from claimed(support, self.row, {"rows": support.max_tokens, "k": support.max_k}, rows=2, k=64, eps=1e-5)

    def need(self, case: Case) -> Need:
        return replace(super().need(case), k=case["k"])

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        rows, size, eps = _sizes(case, draw)
        dtype = case["dtype"]
        x, residual = _draw_x(case, draw, rows, size), 2 * _draw_x(case, draw, rows, size)
        if case.family == "cancel":
            residual = -x * (1 + draw.integers(-2, 3, rows, size) * 2.0**-6)
        if case.family == "midpoint":
            x, residual = _midpoints(draw, ROUNDOFF[dtype], rows, size)
        there = {"x": stored(x, dtype), "residual": stored(residual, dtype)}
        if case.family == "poison":
            there["x"][-1] = float("nan")
        return {**there, "w": stored(_draw_w(case, draw, size), dtype), "eps": eps}

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        outputs = self._fused(case, inputs, bench)
        if case.family == "parts":
            x, residual, w = (bench.put(name, inputs[name]) for name in ("x", "residual", "w"))
            total = bench.bind("scale_add", scale=1.0)(x, residual)
            normed = bench.bind("rms_norm", eps=inputs["eps"])(total, w)
            outputs |= {"y of parts": bench.get(normed), "total of parts": bench.get(total)}
        return {n: y[:-1] for n, y in outputs.items()} if case.family == "poison" else outputs

    def _fused(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        kernel = bench.bind(self.row, eps=inputs["eps"])
        if case.family == "joined":  # rows of the two by turns in one tensor
            x, residual = bench.put("both", torch.stack((inputs["x"], inputs["residual"]), 1)).unbind(1)
        else:
            x, residual = (laid(bench, name, inputs[name], case.family) for name in ("x", "residual"))
        y, total = kernel(x, residual, bench.put("w", inputs["w"]))
        return {"y": bench.get(y), "total": bench.get(total)}

    def doubled(self, inputs: Inputs) -> Inputs:
        return {**inputs, "w": inputs["w"] * 2}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        x, residual, w = (exact(inputs[name]) for name in ("x", "residual", "w"))
        if case.family == "poison":
            x, residual = x[:-1], residual[:-1]
        dtype, rms = case["dtype"], case["dtype"] in RMS_DTYPES
        total = scale_add(x, residual, 1.0)
        bound = scale_add_bound(x, residual, 1.0, dtype)
        expected = {}
        for of in ("", " of parts") if case.family == "parts" else ("",):
            few = case.family in ("cancel", "midpoint")  # different sums
            expected[f"total{of}"] = Expected(value=total, bound=bound, dtype=dtype, rms=rms, bias=not few)
            if f"total{of}" in outputs:
                with np.errstate(invalid="ignore"):  # the sum is a kernel's, and may be infinite
                    y = norm.rms_norm(exact(outputs[f"total{of}"]), w, inputs["eps"])
                y_bound = norm.rms_norm_bound(y, w, dtype)
                bias = case.family != "cancel"
                expected[f"y{of}"] = Expected(value=y, bound=y_bound, dtype=dtype, rms=rms, bias=bias)
        return expected


def _midpoints(draw: Draw, u: float, rows: int, size: int) -> tuple[Floats, Floats]:
    """A few sums near 1 just over the middle between two stored numbers, which hold most of the norm; others exact."""
    big = draw.uniform(rows, size) < 1 / 12
    near_one = 1 + draw.integers(0, 8, rows, size) * 2 * u
    x = np.where(big, near_one, draw.normal(rows, size) / 32)
    return x, np.where(big, u * (1 + 2.0**-5), 0.0)


EXAMS = (RMSNormExam(), AddRMSNormExam())
