"""Norms, activations, rotary embedding and products, by the vendor's ops.

They take memory without gaps: views are copied first. Legend: T tokens, H heads, D head size, K and N columns in and
out, F rotated sizes.
"""

from __future__ import annotations

import torch

from core.kernels.reference import dense as reference
from devices.kunlun.limits import MAX_N
from devices.kunlun.ops import Ops


class Dense:
    """Kernels of the rows of these names."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops

    def rms_norm(self, x: torch.Tensor, w: torch.Tensor, *, eps: float) -> torch.Tensor:
        """The norm of x [..., K] times w [K], rounded once."""
        x = x.contiguous()
        out = torch.empty_like(x)
        self._ops.rmsnorm(x.view(-1, len(w)), w.float(), eps, out=out.view(-1, len(w)))
        return out

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor, *, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm of x + residual, and x + residual, which takes the place of `residual`."""
        residual = residual.contiguous()
        out = torch.empty_like(residual)
        self._ops.add_rmsnorm(x.contiguous(), residual, w.float(), eps, out=out, residual_output=residual)
        return out, residual

    def rope(self, x: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
        """Rotate the pairs (i, i + F/2) of x [T, H, D] by cos_sin [T, F]; x itself where it has no gaps."""
        x = x.contiguous()
        # The rows of cos_sin are those of the tokens already.
        rows = torch.arange(len(x), device=x.device)
        self._ops.rotary_embedding(rows, x.flatten(1), None, x.shape[2], cos_sin.contiguous(), True)
        return x

    def act_mul(self, x: torch.Tensor, *, act: str) -> torch.Tensor:
        """act(x[:, :K]) times x[:, K:]: [T, 2K] -> [T, K]. The vendor has silu; others are made of torch's ops."""
        if act != "silu":
            return reference.act_mul(x, act=act)
        out = x.new_empty((x.shape[0], x.shape[1] // 2))
        self._ops.silu_and_mul(x.contiguous(), axis=-1, turn=True, out=out)
        return out

    def linear(self, x: torch.Tensor, handle: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x [T, K] times the weight [N, K], transposed, plus bias [N]: [T, N], in pieces that the vendor takes."""
        x = x.contiguous()
        wide = None if bias is None else bias.float()
        parts = []
        for first in range(0, len(handle), MAX_N):
            piece = slice(first, first + MAX_N)
            w = handle[piece]
            out = x.new_empty((len(x), len(w)))
            self._ops.matmul(x, w, out, bias=None if wide is None else wide[piece])
            parts.append(out)
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def quant_act(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x [T, K] -> codes [T, K] int8 and scale [T] float32: a 127th of the greatest magnitude of a row."""
        x = x.contiguous()
        codes, most = torch.empty_like(x, dtype=torch.int8), x.new_empty(len(x), dtype=torch.float32)
        self._ops.quant2d(x, codes, most, force_sdnn=True)
        return codes, most / 127

    def pack_weight(self, w: torch.Tensor, *, scheme: str = "dense") -> torch.Tensor:
        """The weight [N, K] without gaps."""
        return w.contiguous()
