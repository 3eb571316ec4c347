"""The examination of kv_copy, kv_swap and copy_rows: bytes that arrive as they were, and no others that change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from conformance.case import Case, Value
from conformance.draw import Draw
from conformance.judge import Expected, raw
from conformance.kernels.moves import MOVED, int32, ints, need_of, numbers, same
from conformance.kernels.pool import MANY_PAGES, layout_of
from conformance.oracle import move
from conformance.row_exam import Inputs, Outputs, RowExam
from conformance.target import Bench
from core.kernels.dtypes import TORCH_DTYPES
from core.kernels.reference.kv import KVLayout, Planes
from core.plugin.facts import DTYPES, Need, Support

_SIZES = ((16, 2, 64), (64, 1, 64), (64, 3, 32))  # page_tokens, heads, head size
_PAGES = 9


class _PagesExam(RowExam):
    """What kv_copy and kv_swap share. Pages are compared whole, as bytes; page 0 is nobody's and is not looked at."""

    def need(self, case: Case) -> Need:
        return Need(dtype=case["dtype"], page_tokens=case["page"], head_size=case["d"])

    def claims(self, support: Support) -> Iterator[Case]:
        for page in sorted(support.page_sizes or ()):
            for dtype in sorted(support.dtypes or DTYPES):
                yield Case.of(self.row, "claim", dtype=dtype, page=page, h=2, d=64, pages=_PAGES)


class KVCopyExam(_PagesExam):
    """Pages [N] to pages [N] of the same pool: all reads come before all writes, so chains and cycles are right."""

    row = "kv_copy"

    def cases(self) -> Iterator[Case]:
        for dtype in DTYPES:
            for page, h, d in _SIZES:
                size: dict[str, Value] = {"dtype": dtype, "page": page, "h": h, "d": d, "pages": _PAGES}
                for family in ("normal", "chain", "back", "cycle", "self", "one_to_many", "empty"):
                    yield Case.of(self.row, family, **size)
                yield Case.of(self.row, "random", **size)
            for page in (16, 64):
                yield Case.of(self.row, "race", dtype=dtype, page=page, h=1, d=32, pages=16, repeats=100)
            yield Case.of(self.row, "cycle", dtype=dtype, page=16, h=1, d=32, pages=MANY_PAGES)

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        some = [int(page) + 1 for page in draw.permutation(case["pages"] - 1)]
        half = len(some) // 2
        pairs: dict[str, tuple[Sequence[int], Sequence[int]]] = {
            "normal": (some[:half], some[half : 2 * half]),
            "chain": (some[:-1], some[1:]),
            "back": (some[1:], some[:-1]),
            "cycle": (some, [*some[1:], some[0]]),
            "self": (some[:3], [some[0], some[2], some[1]]),
            "one_to_many": ([some[0]] * half, some[1 : half + 1]),
            "empty": ([], []),
        }
        pairs["race"], pairs["claim"] = pairs["cycle"], pairs["chain"]
        num = draw.integer(1, len(some))
        pairs["random"] = ([some[i] for i in draw.integers(0, len(some), num)], some[-num:])
        source, target = pairs[case.family]
        return _pages_and_content(source, target, draw)

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        layout = layout_of(case, bench)
        planes, outputs = _filled(layout, case["pages"], "plane", inputs["content"], bench)
        pages = (bench.put(name, inputs[name]) for name in ("source", "target"))
        planes = bench.bind(self.row, layout=layout)(planes, *pages)
        return {**outputs, **_fetched(layout, planes, "plane", bench)}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        return _moved(inputs, outputs, "plane", "plane")


class KVSwapExam(_PagesExam):
    """Pages of one pool to pages of another, which may lie in the other memory; the source stays as it was."""

    row = "kv_swap"

    def cases(self) -> Iterator[Case]:
        for dtype in DTYPES:
            for page, h, d in _SIZES:
                for family in ("device", "to_host", "from_host", "same_pages", "one_to_many", "empty", "random"):
                    yield Case.of(self.row, family, dtype=dtype, page=page, h=h, d=d, pages=_PAGES)
            for family in ("to_host", "from_host"):
                yield Case.of(self.row, family, dtype=dtype, page=16, h=1, d=32, pages=MANY_PAGES)

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        pages = case["pages"]
        num = draw.integer(1, pages - 2) if case.family == "random" else pages // 2 + 1
        target = draw.permutation(pages - 1)[:num] + 1
        source = draw.permutation(pages + 2)[:num] + 1
        if case.family == "same_pages":
            source = target
        elif case.family == "one_to_many":
            source = source * 0 + source[0]
        elif case.family == "empty":
            source, target = source[:0], target[:0]
        return _pages_and_content(source, target, draw)

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        layout, family, content = layout_of(case, bench), case.family, inputs["content"]
        target, before = _filled(layout, case["pages"], "plane", content, bench, host=family == "to_host")
        source, theirs = _filled(layout, case["pages"] + 3, "source", content, bench, host=family == "from_host")
        pages = inputs["target"], inputs["source"]  # on the host, as core has them
        target = bench.bind(self.row, layout=layout)(target, source, *pages)
        after = {**_fetched(layout, target, "plane", bench), **_fetched(layout, source, "source", bench)}
        return {**before, **theirs, **after}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        kept = {
            name.removesuffix(".before"): Expected(bits=x)
            for name, x in outputs.items()
            if name.startswith("source") and name.endswith(".before")
        }
        return {**kept, **_moved(inputs, outputs, "plane", "source")}


def _pages_and_content(source: Any, target: Any, draw: Draw) -> Inputs:
    """The pages of a copy, and the seed of what the pools hold."""
    return {"source": int32(source), "target": int32(target), "content": draw.words(2).tobytes()}


def _filled(
    layout: KVLayout, num_pages: int, name: str, content: bytes, bench: Bench, *, host: bool = False
) -> tuple[Planes, Outputs]:
    """A pool with any bits in it, and what it held: the provider knows its shapes, so it is filled here."""
    planes: list[torch.Tensor] = []
    held: Outputs = {}
    shapes = layout.shapes(num_pages)
    for i, (plane, shape) in enumerate(zip(layout.planes, shapes, strict=True)):
        bits = Draw(content + f"{name}{i}".encode()).bits(TORCH_DTYPES[plane.dtype], *shape)
        if host:
            planes.append(bench.target.device.host_empty(shape, bits.dtype).copy_(bits))
        else:
            planes.append(bench.put(f"{name}{i}", bits, may_change=True))
        held[f"{name}{i}.before"] = _known(bits, plane.page_axis)
        held[f"{name}{i}.axis"] = torch.tensor([plane.page_axis])
    return tuple(planes), held


def _fetched(layout: KVLayout, planes: Planes, name: str, bench: Bench) -> Outputs:
    kinds = zip(layout.planes, planes, strict=True)
    return {f"{name}{i}": _known(bench.get(x), plane.page_axis) for i, (plane, x) in enumerate(kinds)}


def _known(plane: torch.Tensor, axis: int) -> torch.Tensor:
    """Without page 0."""
    return plane.narrow(axis, 1, plane.shape[axis] - 1).clone()


def _moved(inputs: Inputs, outputs: Outputs, target: str, source: str) -> dict[str, Expected]:
    """What target planes hold afterwards."""
    into, out_of = ([page - 1 for page in ints(inputs[name])] for name in ("target", "source"))
    expected = {}
    for name, before in outputs.items():
        if name.startswith(target) and name.endswith(".before"):
            plane = name.removesuffix(".before")
            axis = int(outputs[f"{plane}.axis"])
            read = raw(outputs[f"{source}{plane.removeprefix(target)}.before"])
            expected[plane] = same(move.copy_pages(raw(before), read, into, out_of, axis), before.dtype)
    return expected


class CopyRowsExam(RowExam):
    """values[K, ...] into rows[K] of target[R, ...]; rows are distinct, -1 skips, and row 0 is a row like others."""

    row = "copy_rows"
    may_change = ("target",)

    def cases(self) -> Iterator[Case]:
        for dtype in MOVED:
            for family in ("normal", "payload", "skips", "first", "full"):
                for r, k, tail in ((9, 5, (64,)), (70, 40, (3, 24)), (130, 99, ())):
                    yield Case.of(self.row, family, dtype=dtype, r=r, k=k, tail=tail)
            for r, k, tail in ((4, 0, (8,)), (1, 1, (1,)), (3, 1, ())):
                yield Case.of(self.row, "edge", dtype=dtype, r=r, k=k, tail=tail)
            yield Case.of(self.row, "none", dtype=dtype, r=6, k=4, tail=(16,))
            yield Case.of(self.row, "edge", dtype=dtype, r=3, k=1, tail=(2,), skipped=True)
            yield Case.of(self.row, "race", dtype=dtype, r=90, k=64, tail=(33,), repeats=100)
            for number in range(3):
                yield Case.of(self.row, "random", dtype=dtype, number=number)

    def need(self, case: Case) -> Need:
        return need_of(case["dtype"])

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        r, k, tail = case.get("r"), case.get("k"), case.get("tail")
        if case.family == "random":
            r, tail = draw.integer(2, 150), (draw.integer(1, 80),)
            k = draw.integer(1, r)
        if case.family == "full":
            k = r
        rows = draw.permutation(r)[:k]
        if case.family in ("skips", "race", "random", "none"):
            rows[draw.permutation(k)[: k if case.family == "none" else 1 + k // 3]] = -1
        elif case.family == "first":  # skipped rows before and after, and row 0 among those written
            rows[rows == 0] = rows[k // 2]
            rows[k // 2], rows[0], rows[-1] = 0, -1, -1
        if case.get("skipped"):
            rows[:] = -1
        any_bits = case.family in ("payload", "random")
        target, values = (numbers(draw, case["dtype"], n, *tail, any_bits=any_bits) for n in (r, k))
        return {"target": target, "rows": int32(rows), "values": values}

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        target, rows, values = (bench.put(name, inputs[name]) for name in ("target", "rows", "values"))
        return {"target": bench.get(bench.bind(self.row)(target, rows, values))}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        target = inputs["target"]
        return {"target": same(move.put_rows(raw(target), ints(inputs["rows"]), raw(inputs["values"])), target.dtype)}


EXAMS: tuple[RowExam, ...] = (KVCopyExam(), KVSwapExam(), CopyRowsExam())
