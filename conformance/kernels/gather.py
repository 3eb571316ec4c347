"""The examination of embed, gather_rows, take_ids and put_ids: the right rows, with the bits they had."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from conformance.case import Case
from conformance.draw import Draw
from conformance.judge import Expected, raw
from conformance.kernels.moves import MOVED, int32, ints, need_of, numbers, same
from conformance.oracle import move
from conformance.row_exam import Inputs, Outputs, RowExam
from conformance.target import Bench
from core.plugin.facts import DTYPES, Need

_INT32 = (-(2**31), -(2**31) + 1, -1, 2**31 - 2, 2**31 - 1)
_PAYLOAD = ("payload", "random")


class EmbedExam(RowExam):
    """x[T, E] = rows of table[V, E] that holds ids from `first` on, zeros for other ids.

    Ids just outside the table tell a kernel that clamps, extremes one whose subtraction overflows, and NaN at the rows
    that clamping would read one that multiplies by a mask.
    """

    row = "embed"

    def cases(self) -> Iterator[Case]:
        for dtype in DTYPES:
            for family in ("normal", "payload"):
                for t, v, e, first in ((5, 17, 64, 0), (33, 100, 48, 7), (128, 257, 96, 1000)):
                    yield Case.of(self.row, family, dtype=dtype, t=t, v=v, e=e, first=first)
            for family in ("own", "foreign", "extremes", "repeated", "part"):
                for first in (0, 300):
                    yield Case.of(self.row, family, dtype=dtype, t=24, v=150, e=80, first=first)
            for t, v, e in ((0, 3, 16), (1, 1, 1), (7, 1, 5)):
                yield Case.of(self.row, "edge", dtype=dtype, t=t, v=v, e=e, first=2)
            for number in range(3):
                yield Case.of(self.row, "random", dtype=dtype, number=number)

    def need(self, case: Case) -> Need:
        return Need(dtype=case["dtype"])

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        if case.family == "random":
            t, v, e, first = (draw.integer(1, n) for n in (90, 300, 200, 5000))
        else:
            t, v, e, first = (case[key] for key in ("t", "v", "e", "first"))
        ids = draw.integers(first - v // 2, first + v + v // 2 + 1, t)
        ids[: min(t, 4)] = (first - 1, first, first + v - 1, first + v)[: min(t, 4)]
        if case.family in ("own", "part"):
            ids = draw.integers(first, first + v, t)
        elif case.family == "repeated":
            ids[:] = ids[1:4][draw.integers(0, 3, t)]
        elif case.family == "foreign":
            away = draw.integers(0, v, t)
            ids = np.where(draw.integers(0, 2, t) > 0, first + v + away, first - 1 - away)
        elif case.family == "extremes":
            ids[: len(_INT32)] = _INT32
        table = numbers(draw, case["dtype"], v, e, any_bits=case.family in _PAYLOAD)
        if case.family in ("foreign", "extremes"):
            table[0], table[-1] = float("nan"), float("inf")
        return {"ids": int32(ids), "table": table, "first": first}

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        kernel = bench.bind(self.row, first=inputs["first"])
        ids, table = inputs["ids"], inputs["table"]
        if case.family == "part":  # views into what holds more
            ids = bench.put("ids", torch.cat((ids, ids)))[len(ids) :]
            table = bench.put("table", torch.cat((table, table, table)))[len(table) : 2 * len(table)]
            return {"x": bench.get(kernel(ids, table))}
        return {"x": bench.get(kernel(bench.put("ids", ids), bench.put("table", table)))}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        table = inputs["table"]
        return {"x": same(move.embed(ints(inputs["ids"]), raw(table), inputs["first"]), table.dtype)}


class GatherRowsExam(RowExam):
    """y[K, ...] = x[rows]: rows repeat, come in any order, and x may be a part of wider rows."""

    row = "gather_rows"

    def cases(self) -> Iterator[Case]:
        for dtype in MOVED:
            for family in ("normal", "payload", "repeated", "strided", "columns"):
                for r, k, tail in ((9, 5, (64,)), (40, 64, (72,)), (130, 33, (3, 20)), (200, 77, ())):
                    yield Case.of(self.row, family, dtype=dtype, r=r, k=k, tail=tail)
            for r, k, tail in ((3, 0, (16,)), (1, 1, (1,)), (1, 6, (7,)), (5, 1, ())):
                yield Case.of(self.row, "edge", dtype=dtype, r=r, k=k, tail=tail)
            for number in range(3):
                yield Case.of(self.row, "random", dtype=dtype, number=number)

    def need(self, case: Case) -> Need:
        return need_of(case["dtype"])

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        if case.family == "random":
            r, k, tail = draw.integer(2, 300), draw.integer(1, 200), (draw.integer(1, 150),)
        else:
            r, k, tail = case["r"], case["k"], case["tail"]
        rows = draw.integers(0, r, k)
        rows[: min(k, 3)] = (r - 1, 0, r // 2)[: min(k, 3)]
        if case.family == "repeated":
            rows = rows[draw.integers(0, min(k, 4), k)]
        x = numbers(draw, case["dtype"], r, *tail, any_bits=case.family in _PAYLOAD)
        return {"x": x, "rows": int32(rows)}

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        kernel, x, rows = bench.bind(self.row), inputs["x"], inputs["rows"]
        if case.family == "strided":  # the same rows as every second of a wider tensor, and rows as every second too
            x = bench.put("x", torch.stack((x, x.flip(0)), 1))[:, 0]
            return {"y": bench.get(kernel(x, bench.put("rows", torch.stack((rows, rows.flip(0)), 1))[:, 0]))}
        if case.family == "columns" and x.dim() > 1:  # a part of wider rows
            wide = bench.put("x", torch.cat((x, x.flip(0)), -1))
            return {"y": bench.get(kernel(wide[..., : x.shape[-1]], bench.put("rows", rows)))}
        return {"y": bench.get(kernel(bench.put("x", x), bench.put("rows", rows)))}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        x = inputs["x"]
        return {"y": same(move.gather_rows(raw(x), ints(inputs["rows"])), x.dtype)}


class TakeIdsExam(RowExam):
    """ids[T], replaced by last_ids[source_rows] where the source row is not 0. Row 0 of last_ids holds anything."""

    row = "take_ids"

    def cases(self) -> Iterator[Case]:
        for family in ("normal", "kept", "taken"):
            for t, r in ((1, 2), (16, 9), (77, 130)):
                yield Case.of(self.row, family, t=t, r=r)
        yield Case.of(self.row, "edge", t=0, r=3)
        yield Case.of(self.row, "edge", t=4, r=1)
        for number in range(3):
            yield Case.of(self.row, "random", number=number)

    def need(self, case: Case) -> Need:
        return Need()

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        t, r = case.get("t"), case.get("r")
        if case.family == "random":
            t, r = draw.integer(1, 200), draw.integer(2, 300)
        rows = draw.integers(1, r, t) if r > 1 else np.zeros(t, np.int64)
        if case.family in ("normal", "random"):
            rows = rows * draw.integers(0, 2, t)
        elif case.family == "kept":
            rows = rows * 0
        elif t:
            rows[-1] = r - 1
        ids, last_ids = draw.bits(torch.int32, t), draw.bits(torch.int32, r)
        return {"ids": ids, "rows": int32(rows), "last_ids": last_ids}

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        ids, rows, last_ids = (bench.put(name, inputs[name]) for name in ("ids", "rows", "last_ids"))
        return {"ids": bench.get(bench.bind(self.row)(ids, rows, last_ids))}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        taken = move.take_ids(*(ints(inputs[name]) for name in ("ids", "rows", "last_ids")))
        return {"ids": Expected(bits=int32(taken))}


class PutIdsExam(RowExam):
    """last_ids[R] with ids[L] at rows[L], which are distinct, except for row 0: it is scratch and not looked at."""

    row = "put_ids"
    may_change = ("last_ids",)

    def cases(self) -> Iterator[Case]:
        for family in ("normal", "scratch", "full"):
            for size, r in ((1, 2), (8, 17), (64, 129)):
                yield Case.of(self.row, family, l=size, r=r)
        yield Case.of(self.row, "edge", l=0, r=5)
        yield Case.of(self.row, "race", l=200, r=131, repeats=50)
        for number in range(3):
            yield Case.of(self.row, "random", number=number)

    def need(self, case: Case) -> Need:
        return Need()

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        size, r = case.get("l"), case.get("r")
        if case.family == "random":
            size, r = draw.integer(1, 150), draw.integer(2, 250)
        if case.family == "full":
            size = r - 1
        rows = np.zeros(size, np.int64)
        if case.family != "scratch":
            some = min(size, r - 1) if case.family == "full" else min(size, r - 1) - min(size, r - 1) // 3
            rows[draw.permutation(size)[:some]] = 1 + draw.permutation(r - 1)[:some]
        return {"last_ids": draw.bits(torch.int32, r), "rows": int32(rows), "ids": draw.bits(torch.int32, size)}

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        last_ids, rows, ids = (bench.put(name, inputs[name]) for name in ("last_ids", "rows", "ids"))
        return {"last_ids": bench.get(bench.bind(self.row)(last_ids, rows, ids))[1:]}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        put = move.put_rows(raw(inputs["last_ids"]), ints(inputs["rows"]), raw(inputs["ids"]))
        return {"last_ids": same(put[1:], torch.int32)}


EXAMS: tuple[RowExam, ...] = (EmbedExam(), GatherRowsExam(), TakeIdsExam(), PutIdsExam())
