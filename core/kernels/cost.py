"""The work that a kernel must do, for rooflines: useful operations, and bytes that must move at least.

Formulas are over the letters of the rows' shapes (see `core.kernels.table`), and
e   bytes of an element of the activations    w   bytes of an element of the weight
P   pairs of a query and a key that it sees   C   entries of the KV pool that are read, each once
n   elements in all
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Formulas of operations and bytes. Counted is what the result needs, not what a kernel happens to do.

    They are text, so that people read on the kernel page what is computed here; nobody else writes them.
    """

    flops: str
    moved: str

    def __call__(self, sizes: Mapping[str, float]) -> tuple[float, float]:
        """Operations and bytes for these sizes; a letter that the formulas name must be among them."""
        flops, moved = (eval(text, {"__builtins__": {}}, dict(sizes)) for text in (self.flops, self.moved))
        return float(flops), float(moved)


COSTS: Mapping[str, Cost] = {
    "attn_paged": Cost("4 * P * H * D", "e * (2 * T * H * D + 2 * C * Hkv * D)"),
    "attn_merge": Cost("6 * T * H * D", "3 * e * T * H * D"),
    "embed": Cost("0", "2 * e * T * E"),
    "gather_rows": Cost("0", "2 * e * K * E"),
    "kv_write": Cost("0", "4 * e * T * Hkv * D"),
    "kv_gather": Cost("0", "4 * e * C * Hkv * D"),
    "kv_export": Cost("0", "4 * e * C * Hkv * D"),
    "kv_import": Cost("0", "4 * e * C * Hkv * D"),
    "kv_copy": Cost("0", "4 * e * C * Hkv * D"),
    "kv_swap": Cost("0", "4 * e * C * Hkv * D"),
    "copy_rows": Cost("0", "2 * e * n"),
    "linear": Cost("2 * T * N * K", "e * (T * K + T * N) + w * N * K"),
    "quant_act": Cost("3 * T * K", "(e + 1) * T * K"),
    "rms_norm": Cost("4 * T * K", "2 * e * T * K"),
    "add_rms_norm": Cost("5 * T * K", "4 * e * T * K"),
    "rope": Cost("3 * T * H * F", "2 * e * T * H * D + e * T * F"),
    "act_mul": Cost("5 * T * K", "3 * e * T * K"),
    "scale_add": Cost("2 * n", "3 * e * n"),
    "softcap": Cost("3 * n", "2 * e * n"),
    "penalize": Cost("4 * L * V", "(e + 4) * L * V"),
    "add_bias": Cost("L * V", "(e + 4) * L * V"),
    "min_p": Cost("2 * L * V", "(e + 4) * L * V"),
    "apply_mask": Cost("0", "2 * e * L * V"),
    "sample": Cost("3 * L * V", "e * L * V"),
    "logprobs_topk": Cost("3 * L * V", "e * L * V"),
}
