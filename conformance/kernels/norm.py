"""The examination of rms_norm."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from conformance.bounds import ROUNDOFF, W, eta
from conformance.case import Case
from conformance.draw import Draw, exact, stored
from conformance.judge import Expected
from conformance.oracle import norm
from conformance.row_exam import Inputs, Outputs, RowExam
from conformance.target import Bench
from core.plugin.facts import DTYPES, Need, Support

_ROUNDINGS = 2  # x / rms, then its product with w
_SCALES = {"normal": 1.0, "small": 1e-3, "large": 300.0, "zeros": 0.0}


class RMSNormExam(RowExam):
    """y[R, K] = x / sqrt(mean(x^2) + eps) * w.

    Small inputs tell whether eps is inside the root; large ones, whether squares are summed in the stored dtype; odd
    sizes, whether a padded row is counted.
    """

    row = "rms_norm"

    def cases(self) -> Iterator[Case]:
        for dtype in DTYPES:
            for family in _SCALES:
                for rows, size in ((1, 64), (7, 576), (33, 2880)):
                    yield Case.of(self.row, family, dtype=dtype, rows=rows, k=size, eps=1e-5)
            for rows in (0, 1):
                yield Case.of(self.row, "edge", dtype=dtype, rows=rows, k=1, eps=1e-6)
            for number in range(3):
                yield Case.of(self.row, "random", dtype=dtype, number=number)

    def claims(self, support: Support) -> Iterator[Case]:
        for dtype in sorted(support.dtypes or DTYPES):
            if support.max_k is not None:
                yield Case.of(self.row, "claim", dtype=dtype, rows=2, k=support.max_k, eps=1e-5)

    def need(self, case: Case) -> Need:
        return Need(dtype=case["dtype"], k=case.get("k"))

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        rows, size = case.get("rows"), case.get("k")
        if case.family == "random":  # sizes that nobody could have prepared for
            rows, size = draw.integer(1, 70), draw.integer(2, 3000)
        x = draw.normal(rows, size) * _SCALES.get(case.family, 1.0)
        w = 1 + draw.normal(size) / 4
        return {"x": stored(x, case["dtype"]), "w": stored(w, case["dtype"]), "eps": case.get("eps") or 1e-5}

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        kernel = bench.bind(self.row, eps=inputs["eps"])
        return {"y": bench.get(kernel(bench.put("x", inputs["x"]), bench.put("w", inputs["w"])))}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        x, dtype = exact(inputs["x"]), case["dtype"]
        y = norm.rms_norm(x, exact(inputs["w"]), inputs["eps"])
        bound = (_ROUNDINGS * ROUNDOFF[dtype] + 4 * np.sqrt(x.shape[-1]) * W) * np.abs(y) + eta(dtype)
        return {"y": Expected(value=y, bound=np.asarray(bound), dtype=dtype)}


EXAMS: tuple[RowExam, ...] = (RMSNormExam(),)
