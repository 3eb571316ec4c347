"""The examination of attn_merge.

Legend: T tokens, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from conformance.bounds import EXP_ERROR, ROUNDOFF, W, eta
from conformance.case import Case, Finding
from conformance.draw import Draw, Floats, exact, stored
from conformance.judge import Expected, same_bits
from conformance.oracle import attention
from conformance.row_exam import Inputs, Outputs, RowExam
from conformance.target import Bench
from core.plugin.facts import DTYPES, Need, Support

_SIDES = ("o1", "lse1", "o2", "lse2")
_SHAPES = ((1, 1, 16), (7, 4, 64), (33, 3, 80))
_LARGE = {"float32": 2.0**100, "bfloat16": 2.0**100, "float16": 2.0**13}

_ROUNDINGS = 4
"""exp of a difference, its part in a sum, a division, a product: as many errors of a weight, at most."""


class AttnMergeExam(RowExam):
    """o[T, H, D], lse[T, H] of attention over two sets of keys, from that over each.

    normal    one side may weigh much or little
    large     lse is far from 0, where exp of it is no number; values are large
    opposed   o1 is almost -o2: a sum that is rounded on the way shows
    halves    sides of equal weight and small integers: half of their sum is exact
    far       one side of each token weighs nothing
    empty     one side of each token saw nothing; its o is NaN, and the other side is the result, to the bit
    nothing   nor did the other
    doubled   twice the values
    """

    row = "attn_merge"

    def cases(self) -> Iterator[Case]:
        for dtype in DTYPES:
            for family in ("normal", "large", "opposed", "halves", "far", "empty", "nothing", "doubled"):
                for tokens, heads, size in _SHAPES:
                    yield Case.of(self.row, family, dtype=dtype, rows=tokens, heads=heads, size=size)
            for number in range(3):
                yield Case.of(self.row, "random", dtype=dtype, number=number)

    def claims(self, support: Support) -> Iterator[Case]:
        for dtype in sorted(support.dtypes or DTYPES):
            for size in sorted(support.head_sizes or (1, 8, 40, 512)):
                yield Case.of(self.row, "claim", dtype=dtype, rows=5, heads=3, size=size)
            tokens, size = support.max_tokens or 3000, min(support.head_sizes or (16,))
            yield Case.of(self.row, "claim", dtype=dtype, rows=tokens, heads=1, size=size)

    def need(self, case: Case) -> Need:
        return Need(dtype=case["dtype"], head_size=case.get("size"), max_tokens=case.get("rows"))

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        shape = case.get("rows"), case.get("heads"), case.get("size")
        if case.family == "random":  # sizes that nobody could have prepared for
            shape = draw.integer(1, 60), draw.integer(1, 9), draw.integer(1, 200)
        o1, o2 = draw.normal(2, *shape)
        lse1, lse2 = draw.normal(2, *shape[:2]) * 3
        match case.family:
            case "large":
                o1, o2 = o1 * _LARGE[case["dtype"]], o2 * _LARGE[case["dtype"]]
                far = draw.integers(-1, 2, *shape[:2]) * 300.0
                lse1, lse2 = lse1 + far, lse2 + far
            case "opposed":
                o2, lse2 = -o1 * (1 + o2 / 64), lse1 + lse2 / 64
            case "halves":
                o1, o2 = draw.integers(16, 32, 2, *shape).astype(np.float64)
                lse2 = lse1
            case "doubled":  # nothing near 0, where half a result has fewer bits
                o1, o2 = 1 + o1 / 8, 1 + o2 / 8
            case "far":
                lse2 = lse1 + np.where(lse2 > 0, 200, -200)
            case "empty":
                blind = draw.integers(0, 2, *shape[:2]) > 0
                lse1, lse2 = np.where(blind, -np.inf, lse1), np.where(blind, lse2, -np.inf)
            case "random":
                blind1, blind2 = draw.integers(0, 4, 2, *shape[:2]) == 0
                lse1, lse2 = np.where(blind1, -np.inf, lse1), np.where(blind2, -np.inf, lse2)
            case "nothing":
                lse1, lse2 = lse1 - np.inf, lse2 - np.inf
        o1, o2 = (np.where(np.isneginf(lse)[..., None], np.nan, o) for o, lse in ((o1, lse1), (o2, lse2)))
        tensors = stored(o1, case["dtype"]), stored(lse1, "float32"), stored(o2, case["dtype"]), stored(lse2, "float32")
        return dict(zip(_SIDES, tensors, strict=True))

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        o, lse = bench.bind(self.row)(*(bench.put(name, inputs[name]) for name in _SIDES))
        return {"o": bench.get(o), "lse": bench.get(lse)}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        """`halves` in float32 may be off by a bit: half a weight is exp of a difference."""
        dtype = case["dtype"]
        sides = [exact(inputs[name]) for name in _SIDES]
        o, lse, spread = attention.merge(*sides)
        if case.family in ("far", "empty", "nothing"):
            return {"o": Expected(bits=stored(o, dtype)), "lse": Expected(bits=stored(lse, "float32"))}
        bound, lse_bound = _bounds(o, lse, spread, dtype)
        merged = Expected(value=o, bound=bound, dtype=dtype, rms=dtype != "float32")
        if case.family == "halves" and dtype != "float32":
            merged = Expected(bits=stored(o, dtype))
        return {"o": merged, "lse": Expected(value=lse, bound=lse_bound, dtype="float32", rms=False)}

    def relations(self, case: Case, inputs: Inputs, outputs: Outputs, bench: Bench) -> list[Finding]:
        """Twice the values give twice the result, to the bit."""
        if case.family != "doubled":
            return []
        twice = self.call(case, {**inputs, "o1": inputs["o1"] * 2, "o2": inputs["o2"] * 2}, bench)
        wanted = {"o": outputs["o"] * 2, "lse": outputs["lse"]}
        return [same_bits(f"{name}, values doubled", wanted[name], twice[name], "F") for name in wanted]


def _bounds(o: Floats, lse: Floats, spread: Floats, dtype: str) -> tuple[Floats, Floats]:
    """Of the errors of o and lse.

    A weight may be exp(lse1 - lse) with lse rounded to float32: off by W * |lse|, and each of its steps by EXP_ERROR.
    lse is max + log(1 + exp(-difference)): two errors of EXP_ERROR, and roundings of max, the sum, and the difference.
    """
    size = np.abs(np.where(np.isfinite(lse), lse, 0))
    weight = _ROUNDINGS * EXP_ERROR + 2 * W * size
    bound = ROUNDOFF[dtype] * np.abs(o) + spread * weight[..., None] + eta(dtype)
    return np.asarray(bound), np.asarray(2 * EXP_ERROR + 2 * W * size)


EXAMS: tuple[RowExam, ...] = (AttnMergeExam(),)
