"""Rows of the kernel table that this device supplies: their references, adopted by the compiler.

Communication is left out (there is one rank), and so is packing: weights stay as the reference packs them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from core.kernels.reference import attention
from core.kernels.row import Group, Implementation, Kernel, Row
from core.kernels.table import TABLE
from core.plugin import DeviceFacts, Support
from devices.xla.adopted import Adopted
from devices.xla.lowering import Lowering, lowering

PROVIDER = "xla"
_ONE_PASS = 1 << 40  # bytes: a loop over tiles would be unrolled
_MOVES = frozenset({
    "embed", "gather_rows", "kv_write", "kv_gather", "kv_export", "kv_import", "kv_copy", "kv_swap", "copy_rows",
})  # fmt: skip
_WRITES = {"kv_write": 2, "kv_import": 0, "kv_copy": 0, "kv_swap": 0, "copy_rows": 0, "put_ids": 0}


def implementations(facts: DeviceFacts) -> list[Implementation]:
    """Of every row that a step of one rank can have."""
    support = Support(dtypes=frozenset(facts.dtypes))
    rows = [row for row in TABLE.values() if row.group is not Group.COMM and row.name != "pack_weight"]
    assert facts.torch_extension is not None
    way = lowering(facts.torch_extension)
    return [Implementation(row.name, _kernel(row, way), PROVIDER, support, adopted=True) for row in rows]


def _kernel(row: Row, way: Lowering) -> Kernel:
    if row.name == "kv_layout":
        return row.reference  # computes nothing
    parts = {part: TABLE[part].reference for part in row.parts}
    reference = partial(attention.attend_within, _ONE_PASS) if row.name == "attn_paged" else row.reference
    composed = partial(reference, **parts) if parts else reference
    adopted = Adopted(way, composed, _WRITES.get(row.name), row.name in _MOVES)
    return _without_host(adopted) if row.name == "attn_plan" else adopted


def _without_host(plan: Kernel) -> Kernel:
    """Lengths on the host are of one step alone; what is compiled is not."""

    def attn_plan(*args: Any, host: object | None = None, **fixed: Any) -> Any:
        return plan(*args, **fixed)

    return attn_plan
