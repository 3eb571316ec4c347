"""Kernels that compute nothing: see `devices.null.plugin`.

Legend: T tokens, L logit rows, H heads, D head size, E hidden size, N rows of a weight, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch

from core.kernels.reference.kv import KVLayout, Plane
from core.kernels.reference.sampling import uniform
from core.kernels.row import Implementation, Kernel
from core.kernels.table import TABLE

_PAGES = KVLayout((Plane("int8", (0,), 0),), bytes_per_page=1, format_id="null")


LIKELIER = 5.0
"""Logit of the next token above the others."""

_ZERO = torch.zeros(())


def _zeros(*shape: int) -> torch.Tensor:
    """A tensor of this shape over one zero: making it takes no time and no memory."""
    return _ZERO.expand(shape)


class NullKernels:
    """One model's worth: remembers the ids of the step that runs, and which of them logits are wanted of.

    The hidden state of token t is t + 1 at dimension t, modulo their number, and 0 elsewhere. On the way through the
    layers it is t + 1 in all dimensions, which takes no memory.
    """

    def __init__(self) -> None:
        self._ids_T = torch.zeros(0, dtype=torch.int32)
        self._rows_L = self._ids_T

    def implementations(self) -> list[Implementation]:
        rows: dict[str, Any] = {
            "embed": self.embed,
            "gather_rows": self.gather_rows,
            "pack_weight": lambda w, *, scheme: w,
            "linear": lambda x, handle, bias: _zeros(x.shape[0], handle.shape[0]),
            "rms_norm": lambda x, w, *, eps: x,
            "add_rms_norm": lambda x, residual, w, *, eps: (residual, residual),  # x is all zeros
            "rope": lambda x, cos_sin: x,
            "act_mul": lambda x, *, act: x[:, : x.shape[1] // 2],
            "scale_add": lambda x, y, *, scale: x,
            "softcap": lambda x, *, cap: x,
            "kv_layout": lambda **_: _PAGES,
            "kv_write": lambda k, v, planes, slots, *, page_tokens: planes,
            "kv_gather": lambda planes, pages: (planes[0][pages], planes[0][pages]),
            "attn_plan": lambda *_, **__: (),
            "attn_paged": lambda q, planes, plan, **_: q,
            "sample": self.sample,
        }
        for row in ("add_bias", "penalize", "apply_mask", "min_p", "logprobs_topk"):
            rows[row] = self._on_real_logits(TABLE[row].reference)
        return [Implementation(row, kernel, "null") for row, kernel in rows.items()]

    def embed(self, ids_T: torch.Tensor, table_VE: torch.Tensor, *, first: int) -> torch.Tensor:
        self._ids_T = ids_T
        return (ids_T[:, None] + 1.0).expand(-1, table_VE.shape[1])

    def gather_rows(self, x: torch.Tensor, rows_K: torch.Tensor) -> torch.Tensor:
        """A model gathers its logit rows last; those are what `sample` reads."""
        self._rows_L = rows_K
        if not any(x.stride()):
            return _zeros(rows_K.shape[0], x.shape[1])
        values_K = x[:, 0][rows_K]
        at_K = (values_K.long() - 1) % x.shape[1]
        return torch.zeros(rows_K.shape[0], x.shape[1]).scatter_(1, at_K[:, None], values_K[:, None])

    def sample(
        self,
        logits_LV: torch.Tensor,
        temperature_L: torch.Tensor,
        top_k_L: torch.Tensor,
        top_p_L: torch.Tensor,
        seed_L2: torch.Tensor,
        counter_L: torch.Tensor,
        *,
        greedy: bool,
        top_k_max: int,
    ) -> torch.Tensor:
        if any(logits_LV.stride()):
            rows = (logits_LV, temperature_L, top_k_L, top_p_L, seed_L2, counter_L)
            drawn_L: torch.Tensor = TABLE["sample"].reference(*rows, greedy=greedy, top_k_max=top_k_max)
            return drawn_L
        next_L = (self._ids_T[self._rows_L] + 1) % logits_LV.shape[1]
        if greedy:
            return next_L
        drawn_L = _draw(next_L, temperature_L, top_k_L, top_p_L, uniform(seed_L2, counter_L), logits_LV.shape[1])
        return torch.where(temperature_L > 0, drawn_L, next_L)

    def _on_real_logits(self, reference: Kernel) -> Kernel:
        """A request that shapes its draws gets something to shape."""
        return lambda logits_LV, *rest, **fixed: reference(self._real(logits_LV), *rest, **fixed)

    def _real(self, logits_LV: torch.Tensor) -> torch.Tensor:
        """Logits in which the next token is likelier than the others, all alike; those that are real already stay."""
        if any(logits_LV.stride()):
            return logits_LV
        following = (self._ids_T[self._rows_L].long() + 1) % logits_LV.shape[1]
        return torch.zeros(logits_LV.shape).scatter_(1, following[:, None], LIKELIER)


def _draw(
    next_L: torch.Tensor,
    temperature_L: torch.Tensor,
    top_k_L: torch.Tensor,
    top_p_L: torch.Tensor,
    u_L: torch.Tensor,
    size: int,
) -> torch.Tensor:
    """As the reference, from the logits that `NullKernels._real` would make, without making them.

    The next token has more weight than the others, which weigh 1 each. Of those, the first by id are kept.
    """
    likely_L = torch.exp(LIKELIER / temperature_L.double())
    kept_L = torch.where((top_k_L > 0) & (top_k_L < size), top_k_L, size)
    others_L = (top_p_L * (likely_L + kept_L - 1) - likely_L).ceil().clamp(min=0).minimum(kept_L - 1)
    at_L = u_L * (likely_L + others_L)
    place_L = next_L.minimum(others_L)  # of the next token in what is kept, by id
    beyond_L = torch.where(at_L < place_L + likely_L, next_L, (at_L - likely_L).floor() + 1)
    return torch.where(at_L < place_L, at_L.floor(), beyond_L).int()
