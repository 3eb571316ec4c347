"""The examination of kv_export and kv_import: pages of all layers, to and from the one form that every device knows.

Each is held to that form, so what one device exports, another imports.
"""

from __future__ import annotations

from collections.abc import Iterator

from conformance.case import Case
from conformance.draw import Draw
from conformance.judge import Expected
from conformance.kernels.moves import int32, ints
from conformance.kernels.pool import SHAPES, SIZES, Pool, PoolExam, content, kept_all, untouched
from conformance.row_exam import Inputs, Outputs, RowExam
from conformance.target import Bench
from core.plugin.facts import DTYPES, Support


class _LayersExam(PoolExam):
    """What kv_export and kv_import share: several layers, and the canonical form [layers, 2, N, page, H, D]."""

    def cases(self) -> Iterator[Case]:
        for dtype in DTYPES:
            for family in ("normal", "payload", "worst", "one", "all", "empty"):
                yield from self.sized(family, dtype, SIZES, layers=2)
            yield from self.sized("shapes", dtype, SHAPES, layers=1)

    def claims(self, support: Support) -> Iterator[Case]:
        return (Case(c.row, c.family, {**c.params, "layers": 2}) for c in super().claims(support))

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        pages, page, layers = case["pages"], case["page"], case["layers"]
        num = {"one": 1, "all": pages - 1, "empty": 0}.get(case.family, 3)
        return {
            "pages": int32(1 + draw.permutation(pages - 1)[:num]),
            "fill": content(draw, case, layers, 2, pages - 1, page),
            "canonical": content(draw, case, layers, 2, num, page),
        }

    def filled(self, case: Case, inputs: Inputs, bench: Bench) -> tuple[list[Pool], Outputs]:
        pools = [Pool(case, bench, f"layer{i}_") for i in range(case["layers"])]
        before: Outputs = {}
        for pool, fill in zip(pools, inputs["fill"], strict=True):
            pool.fill(fill)
            before |= {**pool.raw(".before"), **pool.error}
        return pools, before


class KVExportExam(_LayersExam):
    """Pages of all layers in the canonical form, in the order they are named; the pool stays as it is."""

    row = "kv_export"

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        pools, outputs = self.filled(case, inputs, bench)
        made = bench.bind(self.row)([pool.planes for pool in pools], bench.put("pages", inputs["pages"]))
        for pool in pools:
            outputs |= pool.raw()
        return {**outputs, "canonical": bench.get(made)}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        fill, pages = inputs["fill"], [page - 1 for page in ints(inputs["pages"])]
        return {**untouched(outputs, ()), **kept_all({"canonical": fill[:, :, pages]}, outputs, case["dtype"])}


class KVImportExam(_LayersExam):
    """The canonical form into pages of all layers; other pages keep their bytes."""

    row = "kv_import"

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        pools, outputs = self.filled(case, inputs, bench)
        pages, canonical = (bench.put(name, inputs[name]) for name in ("pages", "canonical"))
        layers = bench.bind(self.row)([pool.planes for pool in pools], pages, canonical)
        for i, (pool, planes) in enumerate(zip(pools, layers, strict=True)):
            pool.planes = planes
            outputs |= {**pool.raw(), **pool.read(f"layer{i} ")}
        return outputs

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        after, pages = inputs["fill"].clone(), ints(inputs["pages"])
        after[:, :, [page - 1 for page in pages]] = inputs["canonical"]
        read = {f"layer{i} {name}": x for i, kv in enumerate(after) for name, x in zip("kv", kv, strict=True)}
        return {**untouched(outputs, pages), **kept_all(read, outputs, case["dtype"])}


EXAMS: tuple[RowExam, ...] = (KVExportExam(), KVImportExam())
