"""The examination of act_mul, scale_add and softcap."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from conformance.bounds import LARGEST
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
from conformance.oracle import elementwise
from conformance.row_exam import Inputs, Outputs
from conformance.target import Bench
from core.plugin.facts import Support

_SIZES = ((70, 64), (3, 577), (33, 1536))
NANS = ("nan", "nan_rows")
_EDGES = ((0, 64), (1, 1), (300, 7), (1100, 24), (3, 1537), (2, 8193))


def _size(case: Case, draw: Draw) -> tuple[int, int]:
    if case.family == "random":
        return draw.integer(1, case["rows"] + 1), draw.integer(1, case["k"] + 1)
    return case["rows"], case["k"]


def _put_nan(x: Floats, case: Case) -> None:
    """What is not a number stays so, and spoils nothing beside it."""
    if case.family == "nan":
        x[:, 3::40] = np.nan
    elif case.family == "nan_rows":
        x[::3] = np.nan


def _extremes(draw: Draw, dtype: str, rows: int, size: int) -> Floats:
    """Where exponentials in float32 or float16 end, and numbers twice of which are finite still, of either sign."""
    chosen = [0.0, 1e-4, 0.5, 5.5, 9.0, 11.5, 17.0, 60.0, 87.5, 89.0, 104.5, 300.0, 6e4, LARGEST[dtype] / 4]
    signs = 1 - 2 * draw.integers(0, 2, rows, size)
    return np.asarray(np.array(chosen)[draw.integers(0, len(chosen), rows, size)] * signs)


class ActMulExam(ByToken):
    """y[T, K] = act(x[:, :K]) * x[:, K:]."""

    row = "act_mul"

    def cases(self) -> Iterator[Case]:
        cases = []
        for act in elementwise.ACTS:
            families = ("normal", "wide", "far", "extreme", "zeros")
            cases += [Case.of(self.row, f, rows=r, k=k, act=act) for f in families for r, k in _SIZES]
            cases += [Case.of(self.row, "edge", rows=r, k=k, act=act) for r, k in _EDGES]
            cases += [Case.of(self.row, f, rows=9, k=k, act=act) for f in VIEWS for k in (128, 33)]
            cases += [Case.of(self.row, "invariant", rows=13, k=577, act=act)]
            cases += random_cases(self.row, rows=69, k=1500, act=act)
        cases += [Case.of(self.row, "races", rows=64, k=500, act="silu")]
        cases += [Case.of(self.row, "races", rows=9, k=130, act="silu", times=MANY_TIMES)]
        cases += [Case.of(self.row, f, rows=7, k=130, act="silu") for f in NANS]
        yield from with_dtypes(cases)

    def claims(self, support: Support) -> Iterator[Case]:
        yield from claimed(support, self.row, {"rows": support.max_tokens}, k=64, act="silu")

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        rows, size = _size(case, draw)
        spread = {"wide": 4.0, "far": 100.0}.get(case.family, 1.5)
        gate, up = draw.normal(rows, size) * spread, draw.normal(rows, size)
        if case.family == "extreme":
            gate, up = _extremes(draw, case["dtype"], rows, size), draw.uniform(rows, size) - 0.5
        if case.family == "zeros":
            gate = np.zeros_like(gate)
        _put_nan(gate, case)
        return {"x": stored(np.concatenate((gate, up), -1), case["dtype"])}

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        kernel = bench.bind(self.row, act=case["act"])
        return {"y": bench.get(kernel(laid(bench, "x", inputs["x"], case.family)))}

    def doubled(self, inputs: Inputs) -> Inputs:
        gate, up = inputs["x"].chunk(2, -1)
        return {"x": torch.cat((gate, up * 2), -1)}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        gate, up = np.split(exact(inputs["x"]), 2, -1)
        y = np.asarray(elementwise.ACTS[case["act"]](gate) * up)
        bound = elementwise.act_mul_bound(gate, up, case["act"], case["dtype"])
        many = case.family != "extreme"  # values
        rms = many and case["dtype"] in RMS_DTYPES
        return {"y": Expected(value=y, bound=bound, dtype=case["dtype"], rms=rms, bias=many)}


class ScaleAddExam(ByToken):
    """y = x * scale + z, both [T, K], rounded once. In families "same", z is x itself, as where core multiplies.

    Products of family "overflow" are more than the stored dtype holds, and the sums are not.
    """

    row = "scale_add"
    tokens = ("x", "z")

    def cases(self) -> Iterator[Case]:
        scales = (1.0, 0.7310585786300049, -2.6875)
        families = ("normal", "cancel", "same", "large")
        cases = [
            Case.of(self.row, f, rows=r, k=k, scale=scale)
            for f in families
            for (r, k), scale in zip(_SIZES, scales, strict=True)
        ]
        cases += [Case.of(self.row, "same", rows=5, k=640, scale=s) for s in (24.25, 0.0, -1.0)]
        cases += [Case.of(self.row, "overflow", rows=r, k=k, scale=3.0) for r, k in _SIZES]
        cases += [Case.of(self.row, "edge", rows=r, k=k, scale=1.0) for r, k in _EDGES]
        cases += [Case.of(self.row, f, rows=9, k=k, scale=0.3) for f in VIEWS for k in (128, 33)]
        cases += [Case.of(self.row, "invariant", rows=13, k=577, scale=0.3)]
        cases += [Case.of(self.row, "races", rows=64, k=500, scale=0.3)]
        cases += [Case.of(self.row, "races", rows=9, k=130, scale=0.3, times=MANY_TIMES)]
        cases += [Case.of(self.row, f, rows=7, k=130, scale=0.3) for f in NANS]
        yield from with_dtypes(cases + random_cases(self.row, rows=69, k=1500, scale=0.3))

    def claims(self, support: Support) -> Iterator[Case]:
        yield from claimed(support, self.row, {"rows": support.max_tokens}, k=64, scale=1.0)

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        rows, size = _size(case, draw)
        x, z = draw.normal(rows, size), draw.normal(rows, size)
        if case.family == "cancel":
            z = -x * case["scale"] * (1 + z * 2.0**-6)
        if case.family == "large":
            x, z = x * 2.0**12, z * 2.0**4
        if case.family == "overflow":
            most = LARGEST["float16"] if case["dtype"] == "float16" else 2.0**120  # float32 holds products of both
            x, z = (0.35 + draw.uniform(rows, size) / 4) * most, -(0.85 + draw.uniform(rows, size) / 8) * most
        _put_nan(x, case)
        given = stored(x, case["dtype"])
        return {"x": given, "z": given if case.family == "same" else stored(z, case["dtype"])}

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        kernel = bench.bind(self.row, scale=case["scale"])
        x = laid(bench, "x", inputs["x"], case.family)
        z = x if case.family == "same" else laid(bench, "z", inputs["z"], case.family)
        return {"y": bench.get(kernel(x, z))}

    def doubled(self, inputs: Inputs) -> Inputs:
        return {name: x * 2 for name, x in inputs.items()}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        x, z, scale = exact(inputs["x"]), exact(inputs["z"]), case["scale"]
        y, bound = elementwise.scale_add(x, z, scale), elementwise.scale_add_bound(x, z, scale, case["dtype"])
        rms = case["dtype"] in RMS_DTYPES and case.family != "cancel"
        return {"y": Expected(value=y, bound=bound, dtype=case["dtype"], rms=rms)}


class SoftcapExam(ByToken):
    """y = cap * tanh(x / cap), [T, K], rounded once; far out it is cap, never NaN."""

    row = "softcap"

    def cases(self) -> Iterator[Case]:
        caps = (30.0, 50.0, 7.3)
        families = ("normal", "small", "far", "extreme", "zeros")
        cases = [
            Case.of(self.row, f, rows=r, k=k, cap=cap)
            for f in families
            for (r, k), cap in zip(_SIZES, caps, strict=True)
        ]
        cases += [Case.of(self.row, "edge", rows=r, k=k, cap=30.0) for r, k in _EDGES]
        cases += [Case.of(self.row, f, rows=9, k=k, cap=20.0) for f in VIEWS for k in (128, 33)]
        cases += [Case.of(self.row, "invariant", rows=13, k=577, cap=20.0)]
        cases += [Case.of(self.row, "races", rows=64, k=500, cap=20.0)]
        cases += [Case.of(self.row, "races", rows=9, k=130, cap=20.0, times=MANY_TIMES)]
        cases += [Case.of(self.row, f, rows=7, k=130, cap=20.0) for f in NANS]
        yield from with_dtypes(cases + random_cases(self.row, rows=69, k=1500, cap=20.0))

    def claims(self, support: Support) -> Iterator[Case]:
        yield from claimed(support, self.row, {"rows": support.max_tokens}, k=64, cap=30.0)

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        rows, size = _size(case, draw)
        scale = {"small": 0.25, "far": 200.0, "zeros": 0.0}.get(case.family, 2.0)
        x = draw.normal(rows, size) * scale * case["cap"] / 2
        if case.family == "extreme":
            x = _extremes(draw, case["dtype"], rows, size)
        _put_nan(x, case)
        return {"x": stored(x, case["dtype"])}

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        kernel = bench.bind(self.row, cap=case["cap"])
        return {"y": bench.get(kernel(laid(bench, "x", inputs["x"], case.family)))}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        x, cap = exact(inputs["x"]), case["cap"]
        y, bound = elementwise.softcap(x, cap), elementwise.softcap_bound(x, cap, case["dtype"])
        many = case.family not in ("far", "extreme")  # values, rather than the cap alone
        rms = many and case["dtype"] in RMS_DTYPES
        return {"y": Expected(value=y, bound=bound, dtype=case["dtype"], rms=rms, bias=many)}


EXAMS = (ActMulExam(), ScaleAddExam(), SoftcapExam())
