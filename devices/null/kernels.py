"""Kernels that compute nothing: see `devices.null.plugin`.

Legend: T tokens, L logit rows, H heads, D head size, E hidden size, N rows of a weight, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch

from core.kernels.reference.kv import KVLayout, Plane
from core.kernels.row import Implementation

_PAGES = KVLayout((Plane("int8", (0,), 0),), bytes_per_page=1, format_id="null")


_ZERO = torch.zeros(())


def _zeros(*shape: int) -> torch.Tensor:
    """A tensor of this shape over one zero: making it takes no time and no memory."""
    return _ZERO.expand(shape)


class NullKernels:
    """One model's worth: remembers the ids of the step that runs, and which of them logits are wanted of."""

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
            "add_rms_norm": lambda x, residual, w, *, eps: (x, residual),
            "rope": lambda x, cos_sin: x,
            "act_mul": lambda x, *, act: x[:, : x.shape[1] // 2],
            "kv_layout": lambda **_: _PAGES,
            "kv_write": lambda k, v, planes, slots, *, page_tokens: planes,
            "kv_gather": lambda planes, pages: (planes[0][pages], planes[0][pages]),
            "attn_plan": lambda *_, **__: (),
            "attn_paged": lambda q, planes, plan, **_: q,
            "sample": self.sample,
        }
        return [Implementation(row, kernel, "null") for row, kernel in rows.items()]

    def embed(self, ids_T: torch.Tensor, table_VE: torch.Tensor, *, first: int) -> torch.Tensor:
        self._ids_T = ids_T
        return _zeros(ids_T.shape[0], table_VE.shape[1])

    def gather_rows(self, x: torch.Tensor, rows_K: torch.Tensor) -> torch.Tensor:
        """A model gathers its logit rows last; those are what `sample` reads."""
        self._rows_L = rows_K
        return _zeros(rows_K.shape[0], x.shape[1])

    def sample(self, logits_LV: torch.Tensor, *_: torch.Tensor, greedy: bool, top_k_max: int) -> torch.Tensor:
        return (self._ids_T[self._rows_L] + 1) % logits_LV.shape[1]
