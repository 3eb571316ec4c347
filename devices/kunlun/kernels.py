"""Which rows of the kernel table the vendor's ops serve, and what each takes.

A row is supplied where the vendor's module has the op, with the arguments that it is called with: `prefill_attention`
of public sources knows no scales of codes, and without them attention runs on the reference, as the plan then says.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from core.kernels.row import Implementation, Kernel
from core.plugin import DeviceFacts, Support
from devices.kunlun.attention import Attention
from devices.kunlun.dense import Dense
from devices.kunlun.kv import KV, kv_gather, kv_layout
from devices.kunlun.limits import HEAD_SIZES, MAX_SEQS, PAGE_SIZES, WIDEST_N
from devices.kunlun.ops import Ops
from devices.kunlun.vendor import Vendor

PROVIDER = "kunlun"


_SCALES = ("k_max", "v_max", "scale", "softcap")
_POOL = {"quant2d": (), "reshape_and_cache": (), "reshape_and_cache_flash": ()}
_ATTENTION = {**_POOL, "prefill_attention": _SCALES}


@dataclass(frozen=True)
class _Row:
    """A kernel, and the vendor's ops that it calls, with those of their arguments that not every release may have."""

    kernel: Kernel
    support: Support
    ops: Mapping[str, tuple[str, ...]]


def implementations(facts: DeviceFacts, vendor: Vendor) -> list[Implementation]:
    """Of every row whose ops are there."""
    found = []
    for row, one in _rows(Ops(vendor.ops), frozenset(facts.dtypes)).items():
        if all(_has(vendor.ops, op, arguments) for op, arguments in one.ops.items()):
            found.append(Implementation(row, one.kernel, PROVIDER, one.support))
    return found


def _has(module: Any, op: str, arguments: tuple[str, ...]) -> bool:
    """Whether the module has the op, and the op the arguments."""
    known = getattr(module, op, None)
    return known is not None and (not arguments or set(arguments) <= set(inspect.signature(known).parameters))


def _rows(ops: Ops, dtypes: frozenset[str]) -> dict[str, _Row]:
    dense, kv, attention = Dense(ops), KV(ops), Attention(ops)
    plain = Support(dtypes=dtypes)
    weights = Support(dtypes=dtypes, schemes=frozenset({"dense"}), max_n=WIDEST_N)
    pool = Support(dtypes=dtypes, head_sizes=HEAD_SIZES, page_sizes=PAGE_SIZES)
    steps = Support(dtypes=dtypes, head_sizes=HEAD_SIZES, page_sizes=PAGE_SIZES, max_seqs=MAX_SEQS)
    return {
        "rms_norm": _Row(dense.rms_norm, plain, {"rmsnorm": ()}),
        "add_rms_norm": _Row(dense.add_rms_norm, plain, {"add_rmsnorm": ()}),
        "rope": _Row(dense.rope, plain, {"rotary_embedding": ()}),
        "act_mul": _Row(dense.act_mul, plain, {"silu_and_mul": ()}),
        "linear": _Row(dense.linear, weights, {"matmul": ()}),
        "quant_act": _Row(dense.quant_act, plain, {"quant2d": ()}),
        "pack_weight": _Row(dense.pack_weight, weights, {"matmul": ()}),
        "kv_layout": _Row(kv_layout, pool, _POOL),
        "kv_write": _Row(kv.kv_write, pool, _POOL),
        "kv_gather": _Row(kv_gather, pool, _POOL),
        "kv_swap": _Row(kv.kv_swap, pool, {**_POOL, "swap_blocks": ()}),
        "attn_plan": _Row(attention.attn_plan, steps, _ATTENTION),
        "attn_paged": _Row(attention.attn_paged, steps, _ATTENTION),
    }
