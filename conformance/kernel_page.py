"""Writes KERNELS.md: every kernel, for vendors, who read it instead of our code. `python -m conformance.kernel_page`"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

from conformance.kernels import all_exams
from core.kernels.cost import COSTS
from core.kernels.row import Group, Row
from core.kernels.table import TABLE

PATH = Path(__file__).parent / "KERNELS.md"

BOUNDS = {
    "exact": "the same bits",
    "kv": "the same bits; where the layout declares `kv_error`, within it",
    "elementwise": "`r u |y| + 8 W M + eta` (M: sum of magnitudes of the terms, r: roundings that the row permits)",
    "norm": "`r u |y| + 4 sqrt(K) W |y| + eta` (r: roundings that the row permits)",
    "gemm": "`u |y| + 4 sqrt(K) W S + eta` (S: sum of magnitudes of the products)",
    "quant": "codes the same, or one off where the exact value is within 4 W of a tie",
    "attention": "`u |o| + A (u_P + 4 sqrt(L) W + 2 (4 sqrt(D) W E + 2^-21)) + eta_P / l sum |v| + eta` "
    "(A: sum of p |v|, E: greatest scale sum |q| |k|, u_P: of the dtype of probabilities)",
    "sum": "one rounding of each partial sum; the same bits where every partial sum is exact",
    "sampling": "the id that the seed gives; of neighbours between which float32 sums decide, either",
}
"""Text of check A by tolerance class. The file of each examination has it as code."""

OWN_BOUNDS = {"attn_plan": "that of the attention which reads it"}
"""Of rows whose result means nothing by itself."""

_INTRO = """# Kernels

Generated from the table by `python -m conformance.kernel_page`; a test keeps it current.

A kernel is a plain callable. Arguments before `|` come with every call, those after it are fixed at build or follow
from the shape of the step. Legend: T tokens, S sequences, L logit rows, R rows of last_ids, B pages in a block
table, P pages in the pool, H heads (Hq query, Hkv key and value), D head size, E hidden size, V vocabulary, N and K
rows and columns of a weight. All ids, positions, slots and tables are int32.

NaN in an input makes NaN of every result that rests on it, and of no other; what only moves elements keeps its bits.

In bounds: u unit roundoff of the dtype that is stored, W that of float32 (2^-24), eta half the smallest subnormal.
In costs: e, w bytes of an element of activations and weights, P pairs of a query and a key that it sees, C entries
of the pool that are read, n elements in all. *Production* kernels must be the device's own for the certificate of
that name.
"""


def page() -> str:
    """The whole page."""
    parts = [_INTRO]
    for group in Group:
        parts.append(f"\n## {group.value.capitalize()}\n")
        parts += ["\n".join(_kernel(row)) for row in TABLE.values() if row.group is group]
    return "\n".join(parts)


def _kernel(row: Row) -> Iterator[str]:
    yield f"\n### `{row.name}`{' (production)' if row.production else ''}\n"
    yield f"`{row.shapes}`\n"
    yield inspect.cleandoc(row.reference.__doc__ or "") + "\n"
    yield f"- bound: {OWN_BOUNDS.get(row.name, BOUNDS[row.tolerance])}"
    if row.rounding:
        yield f"- rounding: {row.rounding}"
    if row.name in COSTS:
        yield f"- cost: {COSTS[row.name].flops} FLOP, {COSTS[row.name].moved} bytes"
    if row.mutates:
        yield f"- written in place, and returned: {', '.join(row.mutates)}"
    if row.overwrites:
        yield f"- content may be destroyed: {', '.join(row.overwrites)}"
    if row.parts:
        yield f"- composed, where nobody supplies it, of: {', '.join(row.parts)}"
    if row.bundle:
        yield f"- of the {row.bundle} bundle: one provider supplies it and what it rests on"
    yield f"- examined: {_first_line(row.name)}"


def _first_line(name: str) -> str:
    doc = inspect.cleandoc(type(all_exams()[name]).__doc__ or "")
    return " ".join(doc.partition("\n\n")[0].split())


def write() -> None:
    PATH.write_text(page())


if __name__ == "__main__":
    write()
