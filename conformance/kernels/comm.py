"""The examination of collectives, on two and three ranks in processes of their own.

Inputs of sums are integers, or integers times a power of two, whose sum has the same bits in whatever order it is
formed; only the families "rounded" and "race" have others, with a bound. All ranks get the same bits in any case.
Groups that do not start with rank 0 tell ranks of the group from ranks of the world.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from conformance import ranks
from conformance.bounds import LARGEST, ROUNDOFF, SMALLEST, W, eta
from conformance.case import Case
from conformance.draw import Draw, exact, stored
from conformance.judge import Expected, raw
from conformance.kernels.moves import MOVED, need_of, numbers, same
from conformance.oracle import comm
from conformance.row_exam import Inputs, Outputs, RowExam
from conformance.target import Bench, Host, Target
from core.plugin.facts import DTYPES, Need

PAIR, OTHERS, THREE = (0, 1), (1, 2), (0, 1, 2)
LARGE = (1 << 18) + 3  # elements: 1 MB in float32, and no multiple of anything


class CommExam(RowExam):
    """What examinations of collectives share. Inputs and outputs are numbered by rank of the group: x0, x1, ..."""

    def need(self, case: Case) -> Need:
        return need_of(case["dtype"])

    def refusal(self, case: Case, target: Target, provider: str) -> str | None:
        return super().refusal(case, target, provider) or ranks.refusal(target, case["ranks"])

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        kernel = bench.bind(self.row)  # recorded here as in the ranks
        assert kernel is not None
        members, target = case["ranks"], bench.target
        on_host = target.implementations if isinstance(target.device, Host) else None
        asked = {}
        for number, rank in enumerate(members):
            mine = {name: x for name, x in inputs.items() if not name[-1].isdigit() or name.endswith(str(number))}
            asked[rank] = ranks.Question(case, bench.asked, mine, on_host)
        answers = ranks.ask(target, asked)
        bench.elsewhere = [finding for answer in answers for finding in answer.findings]
        return {f"{name}{i}": x for i, answer in enumerate(answers) for name, x in answer.outputs.items()}

    @abstractmethod
    def on_rank(self, case: Case, inputs: Inputs, bench: Bench, group: Any, rank: int) -> Outputs:
        """As `call`, in the process of one rank, which is number `rank` of `group`."""


def laid_out(case: Case, x: torch.Tensor, bench: Bench) -> torch.Tensor:
    """x on the device; in some families, as a view."""
    if case.family in ("strided", "random") and x.dim() > 1:
        return bench.put("x", x.t().contiguous()).t()
    return bench.put("x", x)


def of_all(inputs: Inputs, name: str) -> list[torch.Tensor]:
    """The inputs of every rank, in order."""
    return [inputs[f"{name}{i}"] for i in range(sum(key.startswith(name) and key[-1].isdigit() for key in inputs))]


def is_rounded(case: Case) -> bool:
    """Whether sums are rounded."""
    return case.family in ("rounded", "race") and case["dtype"] in DTYPES


def summands(draw: Draw, case: Case, *shape: int) -> dict[str, torch.Tensor]:
    """x of every rank, so that every partial sum of them is exact, except in some families."""
    num, dtype = len(case["ranks"]), case["dtype"]
    if dtype == "int32":
        most = 2**31 // num - 1
        return {f"x{i}": torch.from_numpy(draw.integers(-most, most, *shape).astype(np.int32)) for i in range(num)}
    if is_rounded(case):
        return {f"x{i}": draw.tensor(dtype, *shape) for i in range(num)}
    most = int(1 / ROUNDOFF[dtype]) // num - 1
    scale = np.ones(shape)
    if case.family == "scaled":  # from the largest to the smallest numbers there are
        low, high = int(np.log2(SMALLEST[dtype])), int(np.log2(LARGEST[dtype])) - int(-np.log2(ROUNDOFF[dtype]))
        scale = np.ldexp(1.0, draw.integers(low, high + 1, *shape))
    return {f"x{i}": stored(draw.integers(-most, most + 1, *shape) * scale, dtype) for i in range(num)}


def sums(inputs: Inputs, case: Case, outputs: Outputs, rows: list[slice]) -> dict[str, Expected]:
    """What ranks get of the sum: these rows of it."""
    parts = of_all(inputs, "x")
    wide = [x.numpy().astype(np.float64) if x.dtype == torch.int32 else exact(x) for x in parts]
    total = comm.total(wide)
    if not is_rounded(case):
        whole = torch.from_numpy(total).to(parts[0].dtype)
        return {f"y{i}": Expected(bits=whole[chosen]) for i, chosen in enumerate(rows)}
    # Each rank that is added rounds once, in the dtype that is sent or in a wider one.
    u, most = ROUNDOFF[case["dtype"]], comm.total([np.abs(x) for x in wide])
    bound = (len(parts) - 1) * (u + W) * most + eta(case["dtype"])
    return {
        f"y{i}": Expected(value=total[chosen], bound=bound[chosen], dtype=case["dtype"], rms=False, bias=False)
        for i, chosen in enumerate(rows)
    }


class AllReduceExam(CommExam):
    """The sum of x over ranks, with the same bits on each."""

    row = "all_reduce"
    may_change = ("x",)

    def cases(self) -> Iterator[Case]:
        for dtype in MOVED:
            for members in (PAIR, THREE):
                for shape in ((1,), (7,), (64, 33), (1000,)):
                    yield Case.of(self.row, "exact", ranks=members, dtype=dtype, shape=shape)
            for members in (PAIR, OTHERS, THREE):
                yield Case.of(self.row, "random", ranks=members, dtype=dtype)
            yield Case.of(self.row, "group", ranks=OTHERS, dtype=dtype, shape=(40,))
            yield Case.of(self.row, "race", ranks=THREE, dtype=dtype, shape=(900,), repeats=20)
        for dtype in DTYPES:
            for members in (PAIR, THREE):
                yield Case.of(self.row, "scaled", ranks=members, dtype=dtype, shape=(5003,))
                yield Case.of(self.row, "rounded", ranks=members, dtype=dtype, shape=(2000,))
                yield Case.of(self.row, "large", ranks=members, dtype=dtype, shape=(LARGE,))
            yield Case.of(self.row, "empty", ranks=PAIR, dtype=dtype, shape=(0,))

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        shape = (draw.integer(1, 9000),) if case.family == "random" else case["shape"]
        return summands(draw, case, *shape)

    def on_rank(self, case: Case, inputs: Inputs, bench: Bench, group: Any, rank: int) -> Outputs:
        x = bench.put("x", inputs[f"x{rank}"])
        return {"y": bench.get(bench.bind(self.row, group=group)(x))}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        num = len(case["ranks"])
        expected = sums(inputs, case, outputs, [slice(None)] * num)
        alike = {f"y{i}": Expected(bits=outputs["y0"]) for i in range(1, num)} if is_rounded(case) else {}
        return {**expected, **alike}


class ReduceScatterExam(CommExam):
    """This rank's rows of the sum of x over ranks. Rows that ranks cannot share evenly are refused."""

    row = "reduce_scatter"

    def cases(self) -> Iterator[Case]:
        for dtype in DTYPES:
            for members in (PAIR, THREE):
                for rows, tail in ((1, ()), (4, (33,)), (5, (2, 3))):
                    yield Case.of(self.row, "exact", ranks=members, dtype=dtype, rows=rows, tail=tail)
                for family in ("strided", "scaled", "rounded"):
                    yield Case.of(self.row, family, ranks=members, dtype=dtype, rows=6, tail=(50,))
            for members in (PAIR, OTHERS, THREE):
                yield Case.of(self.row, "random", ranks=members, dtype=dtype, rows=None)
            yield Case.of(self.row, "group", ranks=OTHERS, dtype=dtype, rows=3, tail=(8,))
            yield Case.of(self.row, "large", ranks=PAIR, dtype=dtype, rows=2, tail=(LARGE // 4,))
            yield Case.of(self.row, "empty", ranks=PAIR, dtype=dtype, rows=0, tail=(4,))
        for members in (PAIR, THREE):
            for rows in (0, 3):
                yield Case.of(self.row, "one_over", ranks=members, dtype="float32", rows=rows, tail=(4,), more=1)
                yield Case.of(self.row, "one_short", ranks=members, dtype="float32", rows=rows + 1, tail=(4,), more=-1)

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        rows = case["rows"] if case["rows"] is not None else draw.integer(1, 40)
        tail = case.get("tail") or ((draw.integer(1, 60),) if case.family == "random" else ())
        return summands(draw, case, rows * len(case["ranks"]) + case.get("more", 0), *tail)

    def on_rank(self, case: Case, inputs: Inputs, bench: Bench, group: Any, rank: int) -> Outputs:
        kernel, x = bench.bind(self.row, group=group), inputs[f"x{rank}"]
        there = laid_out(case, x, bench)
        if not case.get("more"):
            return {"y": bench.get(kernel(there))}
        try:
            kernel(there)
        except Exception:  # noqa: BLE001  in whatever way it is refused
            return {"refused": torch.tensor([True])}
        return {"refused": torch.tensor([False])}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        num = len(case["ranks"])
        if case.get("more"):
            return {f"refused{i}": Expected(bits=torch.tensor([True])) for i in range(num)}
        rows = len(inputs["x0"]) // num
        return sums(inputs, case, outputs, [slice(i * rows, (i + 1) * rows) for i in range(num)])


class AllGatherExam(CommExam):
    """x of every rank, in order of rank."""

    row = "all_gather"

    def cases(self) -> Iterator[Case]:
        for dtype in MOVED:
            for members in (PAIR, THREE):
                for shape in ((1,), (5, 33), (4, 2, 9)):
                    yield Case.of(self.row, "normal", ranks=members, dtype=dtype, shape=shape)
                for family in ("strided", "payload"):
                    yield Case.of(self.row, family, ranks=members, dtype=dtype, shape=(7, 40))
            for members in (PAIR, OTHERS, THREE):
                yield Case.of(self.row, "random", ranks=members, dtype=dtype, shape=None)
            yield Case.of(self.row, "group", ranks=OTHERS, dtype=dtype, shape=(3, 8))
            yield Case.of(self.row, "large", ranks=PAIR, dtype=dtype, shape=(LARGE // 2,))
            yield Case.of(self.row, "empty", ranks=PAIR, dtype=dtype, shape=(0, 4))

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        shape = case["shape"] or (draw.integer(1, 60), draw.integer(1, 60))
        payload = case.family in ("payload", "random")
        return {f"x{i}": numbers(draw, case["dtype"], *shape, any_bits=payload) for i in range(len(case["ranks"]))}

    def on_rank(self, case: Case, inputs: Inputs, bench: Bench, group: Any, rank: int) -> Outputs:
        there = laid_out(case, inputs[f"x{rank}"], bench)
        return {"y": bench.get(bench.bind(self.row, group=group)(there))}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        parts = of_all(inputs, "x")
        whole = comm.gathered([raw(x) for x in parts])
        return {f"y{i}": same(whole, x.dtype) for i, x in enumerate(parts)}


class AllToAllExam(CommExam):
    """Rows to ranks by counts: as many as given, also none, and all of one's own."""

    row = "all_to_all_v"

    def cases(self) -> Iterator[Case]:
        for dtype in MOVED:
            for members in (PAIR, THREE):
                for family in ("normal", "payload", "strided", "skewed", "silent", "own"):
                    yield Case.of(self.row, family, ranks=members, dtype=dtype, tail=(33,))
            for members in (PAIR, OTHERS, THREE):
                yield Case.of(self.row, "random", ranks=members, dtype=dtype, tail=(19,))
            yield Case.of(self.row, "group", ranks=OTHERS, dtype=dtype, tail=(3, 4))
            yield Case.of(self.row, "empty", ranks=PAIR, dtype=dtype, tail=(8,))

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        num = len(case["ranks"])
        counts = draw.integers(1, 9, num, num)
        if case.family == "random":
            counts = draw.integers(0, 40, num, num)
        elif case.family == "skewed":  # everything to the last rank
            counts[:, :-1] = 0
        elif case.family == "silent":  # one rank sends nothing, and gets nothing
            counts[0], counts[:, 0] = 0, 0
        elif case.family == "own":
            counts = counts * np.eye(num, dtype=np.int64)
        elif case.family == "empty":
            counts = counts * 0
        payload, sizes = case.family in ("payload", "random"), counts.sum(1)
        parts = {
            f"x{i}": numbers(draw, case["dtype"], int(sizes[i]), *case["tail"], any_bits=payload) for i in range(num)
        }
        return {**parts, "counts": counts.tolist()}

    def on_rank(self, case: Case, inputs: Inputs, bench: Bench, group: Any, rank: int) -> Outputs:
        there, counts = laid_out(case, inputs[f"x{rank}"], bench), inputs["counts"]
        kernel = bench.bind(self.row, group=group)
        return {"y": bench.get(kernel(there, counts[rank], [row[rank] for row in counts]))}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        parts = of_all(inputs, "x")
        bits, counts = [raw(x) for x in parts], inputs["counts"]
        return {f"y{i}": same(comm.exchanged(bits, counts, i), x.dtype) for i, x in enumerate(parts)}


EXAMS: tuple[RowExam, ...] = (AllReduceExam(), ReduceScatterExam(), AllGatherExam(), AllToAllExam())
