"""The examination of the KV pool: kv_layout, kv_write, kv_gather.

What was written comes back: with the same bits, or, where the layout declares an error because it stores narrower
codes, within it. Page 0 is nobody's: what is there is not looked at. Pages that a write does not name keep their bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from conformance.case import Case, Finding
from conformance.draw import Draw, from_bits
from conformance.judge import Expected, raw, same_bits
from conformance.kernels.moves import int32, ints
from conformance.kernels.pool import (
    MANY_PAGES,
    MAX_CLAIMED_TOKENS,
    SHAPES,
    SIZES,
    Pool,
    PoolExam,
    content,
    kept_all,
    layout_of,
    untouched,
)
from conformance.oracle import move
from conformance.row_exam import Inputs, Outputs, RowExam
from conformance.target import Bench
from core.kernels.dtypes import TORCH_DTYPES
from core.plugin.facts import DTYPES, Support

_VIEWS = {"joined": "kv", "turned": "v", "apart": "k"}
"""Family -> which of k and v are parts of one product with queries; the other has memory of its own, as after rope."""

MAX_KV_ERROR = 0.25
"""The greatest error a layout may declare: that of codes of three bits. With more, a wrong entry may pass for a right
one."""


class KVLayoutExam(PoolExam):
    """A layout is data: every plane has one page axis, and a page takes the bytes it is said to take."""

    row = "kv_layout"

    def cases(self) -> Iterator[Case]:
        for dtype in DTYPES:
            yield from self.sized("normal", dtype, SIZES)
            yield from self.sized("shapes", dtype, SHAPES)

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        return {}

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        layout = layout_of(case, bench)
        planes = {f"plane{i}": torch.tensor([p.page_axis, *p.shape]) for i, p in enumerate(layout.planes)}
        sizes = [TORCH_DTYPES[p.dtype].itemsize for p in layout.planes]
        return {
            **planes,
            "item_bytes": torch.tensor(sizes),
            "bytes_per_page": torch.tensor([layout.bytes_per_page]),
            "kv_error": torch.tensor([layout.kv_error], dtype=torch.float64),
            "format_chars": torch.tensor([len(layout.format_id)]),
        }

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        expected, total = {}, 0
        for i, size in enumerate(ints(outputs["item_bytes"])):
            axis, *shape = ints(outputs[f"plane{i}"])
            right = [0 if at == axis else max(1, n) for at, n in enumerate(shape)]
            inside = axis if 0 <= axis < len(shape) else 0
            expected[f"plane{i}"] = Expected(bits=torch.tensor([inside, *right]))
            total += size * int(np.prod([n for at, n in enumerate(shape) if at != axis]))
        error = outputs["kv_error"].nan_to_num(0).clamp(0, MAX_KV_ERROR)
        return {
            **expected,
            "bytes_per_page": Expected(bits=torch.tensor([total])),
            "kv_error": Expected(bits=error),
            "format_chars": Expected(bits=outputs["format_chars"].clamp(min=1)),
        }


class KVWriteExam(PoolExam):
    """k and v [T, H, D] to slots[T] = page * page_tokens + offset; -1 skips.

    Every other entry is known before: kernels that write beside the slot, or a whole page, or to the place of slot -1,
    are found by what they spoil. What a slot held before may be NaN.
    """

    row = "kv_write"

    def cases(self) -> Iterator[Case]:
        for dtype in DTYPES:
            for family in ("normal", "overwrite", *_VIEWS, "payload", "worst"):
                yield from self.sized(family, dtype, SIZES, t=40)
            yield from self.sized("shapes", dtype, SHAPES, t=17)
            for page in (16, 64):
                for start in (0, page - 1):
                    for t in (1, page - 1, page, page + 1, 2 * page - 1, 2 * page + 1):
                        yield from self.sized("edges", dtype, [(page, 1, 64)], t=t, start=start)
            for t in (0, 1, 9):
                yield from self.sized("skipped", dtype, SIZES[:2], t=t)
            yield from self.sized("race", dtype, [(16 if dtype == "float16" else 64, 1, 16)], t=60, repeats=100)
            for number in range(3):
                yield from self.sized("random", dtype, SIZES[:2], number=number)
            for family in ("far", "payload"):
                yield from self.sized(family, dtype, SIZES[:1], pages=MANY_PAGES, t=40)
            yield from self.sized("long", dtype, [(16, 1, 16)], pages=100, t=1100, claimed=1100)

    def claims(self, support: Support) -> Iterator[Case]:
        for case in super().claims(support):
            pages = max(case["pages"], 1 + -(-40 // case["page"]))
            yield Case(case.row, case.family, {**case.params, "pages": pages, "t": 40})
        page, d = min(support.page_sizes or {16}), min(support.head_sizes or {64})
        most = support.max_tokens
        if most is not None and most <= MAX_CLAIMED_TOKENS:
            for dtype in sorted(support.dtypes or DTYPES):
                pages = 2 + -(-most // page)
                yield from self.sized("claim", dtype, [(page, 1, d)], pages=pages, t=most, claimed=most)

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        page, pages, t = case["page"], case["pages"], case.get("t")
        if case.family == "random":
            t = draw.integer(1, (pages - 1) * page + 1)
        slots = page + draw.permutation((pages - 1) * page)[:t]
        if case.family == "edges":  # a sequence, through its block table
            table = 1 + draw.permutation(pages - 1)
            positions = case["start"] + np.arange(t)
            slots = table[positions // page] * page + positions % page
        elif case.family == "skipped":
            slots[:] = -1
        elif case.family != "claim":
            slots[draw.permutation(t)[: t // 6]] = -1
        return {
            "k": content(draw, case, t),
            "v": content(draw, case, t),
            "slots": int32(slots),
            "fill": content(draw, case, 2, pages - 1, page),
            "cuts": [0, t],
        }

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        pool, slots = Pool(case, bench), inputs["slots"]
        pool.fill(inputs["fill"], () if case.family == "overwrite" else ints(slots))
        before = pool.raw(".before")
        k, v = self._laid_out(case, inputs, bench)
        on_device = bench.put("slots", slots)
        for start, end in zip(inputs["cuts"], inputs["cuts"][1:], strict=False):
            pool.write(k[start:end], v[start:end], on_device[start:end])
        return {**before, **pool.raw(), **pool.read(), **pool.error}

    def _laid_out(self, case: Case, inputs: Inputs, bench: Bench) -> tuple[torch.Tensor, torch.Tensor]:
        k, v, h = inputs["k"], inputs["v"], case["h"]
        views = _VIEWS.get(case.family, "")
        qkv = bench.put("qkv", torch.cat((v, k, k, v), 1)) if views else k  # as a projection leaves them
        return (
            qkv[:, 2 * h : 3 * h] if "k" in views else bench.put("k", k),
            qkv[:, 3 * h :] if "v" in views else bench.put("v", v),
        )

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        page, slots = case["page"], ints(inputs["slots"])
        after = {}
        for name, fill in zip("kv", inputs["fill"], strict=True):
            moved = [slot - page if slot >= 0 else -1 for slot in slots]
            bits = move.write_slots(raw(fill), moved, raw(inputs[name]))
            after[name] = from_bits(bits, fill.dtype)
        touched = {slot // page for slot in slots if slot >= 0}
        return {**untouched(outputs, sorted(touched)), **kept_all(after, outputs, case["dtype"])}

    def relations(self, case: Case, inputs: Inputs, outputs: Outputs, bench: Bench) -> list[Finding]:
        """The order of tokens, and whether they come in one step or several, is nothing to the pool."""
        t = len(inputs["slots"])
        if t < 2 or float(outputs["kv_error"]) > 0:
            return []
        turned = {name: inputs[name].flip(0).contiguous() for name in ("k", "v", "slots")}
        found = []
        for how, change in (("turned round", turned), ("in three parts", {"cuts": [0, t // 3, t // 2, t]})):
            again = self.call(case, {**inputs, **change}, bench)
            found += [same_bits(f"{name}, {how}", outputs[name], again[name], "F") for name in ("k", "v")]
        return found


class KVGatherExam(PoolExam):
    """k and v of pages, in any shape: each [*pages.shape, page, H, D] in the model's dtype."""

    row = "kv_gather"

    def cases(self) -> Iterator[Case]:
        for dtype in DTYPES:
            for family, shape in (
                ("list", (4,)),
                ("table", (3, 4)),
                ("table", (2, 2, 3)),
                ("repeated", (9,)),
                ("strided", (3, 3)),
                ("empty", (0,)),
                ("empty", (2, 0)),
            ):
                yield from self.sized(family, dtype, SIZES, shape=shape)
            yield from self.sized("random", dtype, SIZES, shape=None)
            yield from self.sized("payload", dtype, SIZES, shape=(5,))
            yield from self.sized("worst", dtype, SIZES, shape=(5,))
            yield from self.sized("shapes", dtype, SHAPES, shape=(1, 2))
            yield from self.sized("far", dtype, SIZES[:1], shape=(3, 40), pages=MANY_PAGES)

    def claims(self, support: Support) -> Iterator[Case]:
        return (Case(c.row, c.family, {**c.params, "shape": (2, 3)}) for c in super().claims(support))

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        shape = case["shape"] or (draw.integer(2, 6), draw.integer(2, 6))
        pages = draw.integers(0 if case.family in ("table", "strided") else 1, case["pages"], *shape)
        if case.family == "list":
            pages = 1 + draw.permutation(case["pages"] - 1)[: case["shape"][0]]
        return {"pages": int32(pages), "fill": content(draw, case, 2, case["pages"] - 1, case["page"])}

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        pool, pages = Pool(case, bench), inputs["pages"]
        pool.fill(inputs["fill"])
        before = pool.raw(".before")
        # A block table is wider than what a step uses of it.
        wider = case.family in ("strided", "random")
        there = bench.put("pages", torch.cat((pages, pages.flip(0)), -1) if wider else pages)
        found = bench.bind(self.row)(pool.planes, there[..., : pages.shape[-1]])
        outputs = {**before, **pool.raw(), **pool.error}
        for name, x in zip("kv", found, strict=True):
            host = bench.get(x)
            outputs[name] = host[pages > 0]
            outputs[f"{name} shape"] = torch.tensor(host.shape)
        return outputs

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        pages, expected = inputs["pages"], untouched(outputs, ())
        after = {}
        for name, fill in zip("kv", inputs["fill"], strict=True):
            rows = [page - 1 for page in ints(pages) if page]
            after[name] = from_bits(move.gather_rows(raw(fill), rows), fill.dtype)
            expected[f"{name} shape"] = Expected(bits=torch.tensor([*pages.shape, *fill.shape[1:]]))
        return {**expected, **kept_all(after, outputs, case["dtype"])}


EXAMS: tuple[RowExam, ...] = (KVLayoutExam(), KVWriteExam(), KVGatherExam())
