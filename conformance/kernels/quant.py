"""The examination of quant_act."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from conformance.bounds import eta
from conformance.case import Case
from conformance.draw import Draw, exact, stored
from conformance.judge import Expected
from conformance.kernels.by_token import VIEWS, ByToken, claimed, laid, random_cases, with_dtypes
from conformance.oracle import quant
from conformance.row_exam import Inputs, Outputs
from conformance.target import Bench
from core.plugin.facts import Support

_SIZES = ((70, 64), (7, 577), (5, 4100))
_TINY = {"float32": 2.0**-80, "bfloat16": 2.0**-80, "float16": 2.0**-19}
_HUGE = {"float32": 2.0**100, "bfloat16": 2.0**100, "float16": 2.0**13}


class QuantActExam(ByToken):
    """codes[T, K] int8 = x / scale, ties to even, and scale[T] float32 = max |x| / 127; of a row of zeros, all 0.

    In family "ties" scales are powers of two and many x lie in a tie, which float32 computes exactly. In "outlier" and
    "negative", too, and there one number, the last of its row, decides the scale.
    """

    row = "quant_act"
    doubling = ("scale",)

    def cases(self) -> Iterator[Case]:
        families = ("normal", "ties", "outlier", "negative", "tiny", "huge", "rows", "zeros")
        cases = [Case.of(self.row, f, rows=r, k=k) for f in families for r, k in _SIZES]
        cases += [Case.of(self.row, "edge", rows=r, k=k) for r, k in ((0, 64), (1, 1), (300, 3))]
        cases += [Case.of(self.row, f, rows=9, k=k) for f in VIEWS for k in (128, 33)]
        cases += [Case.of(self.row, "poison", rows=6, k=200)]
        cases += [Case.of(self.row, "invariant", rows=13, k=577), Case.of(self.row, "races", rows=64, k=500)]
        yield from with_dtypes(cases + random_cases(self.row, rows=69, k=3000))

    def claims(self, support: Support) -> Iterator[Case]:
        yield from claimed(support, self.row, {"rows": support.max_tokens}, k=64)

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        rows, size, family = case["rows"], case["k"], case.family
        if family == "random":
            rows, size = draw.integer(1, rows + 1), draw.integer(1, size + 1)
        x = draw.normal(rows, size) * {"tiny": _TINY, "huge": _HUGE}.get(family, {}).get(case["dtype"], 1.0)
        if family == "ties":
            x = draw.integers(-253, 254, rows, size) / 2.0
            x[:, 0] = 127
            x *= 2.0 ** draw.integers(-6, 7, rows, 1)
        if family in ("outlier", "negative"):
            x[:, -1] = 127 / 8 if family == "outlier" else -127 / 8
        if family == "rows":  # each of its own magnitude, some of zeros
            x *= 2.0 ** draw.integers(-8, 9, rows, 1) * (draw.integers(0, 4, rows, 1) > 0)
        if family == "zeros":
            x[:] = 0
        stored_x = stored(np.asarray(x), case["dtype"])
        if family == "poison":
            stored_x[-1] = float("nan")
        return {"x": stored_x}

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        codes, scale = bench.bind(self.row)(laid(bench, "x", inputs["x"], case.family))
        outputs = {"codes": bench.get(codes), "scale": bench.get(scale)}
        return {n: y[:-1] for n, y in outputs.items()} if case.family == "poison" else outputs

    def doubled(self, inputs: Inputs) -> Inputs:
        return {"x": inputs["x"] * 2}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        x = exact(inputs["x"])
        codes, allowed, scale = quant.quant_act(x[:-1] if case.family == "poison" else x)
        error = np.asarray(quant.SCALE_ERROR * scale + eta("float32"))
        return {
            "codes": Expected(value=codes, bound=allowed, dtype="int8", rms=False),
            "scale": Expected(value=scale, bound=error, dtype="float32", rms=False),
        }


EXAMS = (QuantActExam(),)
