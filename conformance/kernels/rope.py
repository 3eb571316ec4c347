"""The examination of rope."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from conformance.bounds import LARGEST, SMALLEST
from conformance.case import Case
from conformance.draw import Draw, Floats, exact, stored
from conformance.judge import Expected
from conformance.kernels.by_token import RMS_DTYPES, ByToken, claimed, random_cases, with_dtypes
from conformance.oracle import rope
from conformance.row_exam import Inputs, Outputs
from conformance.target import Bench
from core.plugin.facts import DTYPES, Need, Support

_AROUND = (1, 2)
"""Heads of a view's larger tensor before and after it, as values are after queries and keys."""

_FAR = 2**20


class RopeExam(ByToken):
    """Pairs (i, i + F/2) of x[T, H, D] turned by cos_sin[T, F]; dimensions from F on keep their bits.

    The table's rows are an input. In family "turns" they are those of positions from 0 to beyond a million, in
    "normal" and others any numbers, as tables with an attention factor are; in "lattice" x and table are small
    integers, so results are exact, whatever is rounded. Families "view" turn the first heads of a larger tensor, where
    the others must keep their bits.
    """

    row = "rope"
    may_change = ("x",)
    tokens = ("x", "cos_sin")
    doubling = ("turned",)

    def cases(self) -> Iterator[Case]:
        shapes = ((37, 3, 64, 64), (5, 9, 80, 80), (9, 2, 96, 40), (17, 4, 128, 32), (3, 2, 256, 256))
        families = ("normal", "turns", "lattice", "view")
        cases = [self._case(f, shape) for f in families for shape in shapes]
        edges = ((0, 2, 64, 64), (1, 1, 2, 2), (1100, 1, 64, 64), (1, 40, 128, 128), (4, 2, 65, 2))
        cases += [self._case("edge", shape) for shape in edges]
        cases += [self._case("invariant", shape) for shape in ((13, 3, 64, 64), (9, 2, 96, 40))]
        cases += [self._case("races", (64, 4, 64, 64))]
        cases += random_cases(self.row, rows=69, heads=12, size=200, turned=64)
        yield from with_dtypes(cases)

    def claims(self, support: Support) -> Iterator[Case]:
        sizes = sorted(support.head_sizes or ())
        for dtype in sorted(support.dtypes or DTYPES) if sizes else ():
            for size in dict.fromkeys((sizes[0], sizes[-1])):
                yield Case.of(self.row, "claim", dtype=dtype, rows=5, heads=3, size=size, turned=size)
        yield from claimed(support, self.row, {"rows": support.max_tokens}, heads=2, size=64, turned=64)

    def _case(self, family: str, shape: tuple[int, int, int, int]) -> Case:
        rows, heads, size, turned = shape
        return Case.of(self.row, family, rows=rows, heads=heads, size=size, turned=turned)

    def need(self, case: Case) -> Need:
        return replace(super().need(case), head_size=case["turned"])

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        rows, heads, size, turned = (case[name] for name in ("rows", "heads", "size", "turned"))
        if case.family == "random":
            rows, heads = draw.integer(1, rows + 1), draw.integer(1, heads + 1)
            size = draw.integer(turned, size + 1)
        dtype = case["dtype"]
        x, table = draw.normal(rows, heads, size), draw.normal(rows, turned)
        if case.family == "turns":
            table = _turns(draw, rows, turned)
        if case.family == "lattice":
            x, table = np.rint(x * 3), np.rint(table * 3)
        special = np.array([np.inf, -np.inf, -0.0, SMALLEST[dtype], -LARGEST[dtype], 1 / 3])
        x[..., turned:] = special[draw.integers(0, len(special), rows, heads, size - turned)]
        beside = stored(draw.normal(rows, sum(_AROUND), size), dtype)
        return {"x": stored(x, dtype), "cos_sin": stored(table, dtype), "beside": beside}

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        x, beside, turned = inputs["x"], inputs["beside"], inputs["cos_sin"].shape[1]
        before, last = _AROUND[0], _AROUND[0] + x.shape[1]
        is_view = case.family == "view"
        if is_view:
            x = torch.cat((beside[:, :before], x, beside[:, before:]), 1)
        whole = bench.put("x", x)
        y = bench.bind(self.row)(whole[:, before:last] if is_view else whole, bench.put("cos_sin", inputs["cos_sin"]))
        host = bench.get(y)
        outputs = {"turned": host[..., :turned].flatten(1), "rest": host[..., turned:]}
        if is_view:
            there = bench.get(whole)
            outputs["beside"] = torch.cat((there[:, :before], there[:, last:]), 1)
        return outputs

    def doubled(self, inputs: Inputs) -> Inputs:
        return {**inputs, "cos_sin": inputs["cos_sin"] * 2}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        dtype, turned = case["dtype"], inputs["cos_sin"].shape[1]
        turns = rope.rope(exact(inputs["x"][..., :turned]), exact(inputs["cos_sin"]))
        y, terms = (part.reshape(len(part), part.shape[1] * turned) for part in turns)
        expected = {"rest": Expected(bits=inputs["x"][..., turned:])}
        if case.family == "view":
            expected["beside"] = Expected(bits=inputs["beside"])
        if case.family == "lattice":
            return {**expected, "turned": Expected(bits=stored(y, dtype))}
        bound = rope.rope_bound(y, terms, dtype)
        return {**expected, "turned": Expected(value=y, bound=bound, dtype=dtype, rms=dtype in RMS_DTYPES)}


def _turns(draw: Draw, rows: int, turned: int) -> Floats:
    """Cosines and sines of positions in no order, 0 and a far one among them, of angles from a radian down."""
    half = turned // 2
    positions = draw.integers(0, _FAR, rows)
    positions[:3] = (_FAR + 1, 0, 1)[: min(3, rows)]
    tangent = (0.25 + draw.uniform(half) / 4) * 2.0 ** -np.floor(np.arange(half) * 16.0 / half)  # of half an angle
    base = (1 - tangent**2) / (1 + tangent**2), 2 * tangent / (1 + tangent**2)
    return np.concatenate(rope.turns(base, positions.astype(np.float64)), -1)


EXAMS = (RopeExam(),)
