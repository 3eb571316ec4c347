"""Norms, activations, rotary embedding and products.

Legend: T tokens, H heads, D head size, K and N columns in and out, F rotated sizes, P rows of a table.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from devices.kunlun.limits import MAX_N
from devices.kunlun.sim.vendor.launch import FLOATS, REFUSED, fits, launch


def rmsnorm(x: torch.Tensor, weight: torch.Tensor, eps: float, *, out: torch.Tensor) -> int:
    """out = x [T, K] / rms(x) * weight [K] float32, rounded once."""
    if not (fits(FLOATS, x, out) and fits(torch.float32, weight) and x.dtype == out.dtype):
        return REFUSED

    def run(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(torch.rms_norm(x.float(), weight.shape, weight, eps))

    return launch("rmsnorm", run, [x, weight], [out], 4 * x.numel())


def add_rmsnorm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    out: torch.Tensor,
    residual_output: torch.Tensor,
) -> int:
    """residual_output = x + residual, rounded; out = its rmsnorm. `residual_output` may be `residual`."""
    same = x.dtype == residual.dtype == out.dtype == residual_output.dtype
    if not (same and fits(FLOATS, x, residual, out, residual_output) and fits(torch.float32, weight)):
        return REFUSED

    def run(*given: torch.Tensor) -> None:
        x, residual, weight, out, total = given
        torch.add(x, residual, out=total)
        out.copy_(torch.rms_norm(total.float(), weight.shape, weight, eps))

    return launch("add_rmsnorm", run, [x, residual, weight], [out, residual_output], 5 * x.numel())


def silu_and_mul(x: torch.Tensor, *, axis: int = -1, turn: bool = True, out: torch.Tensor) -> int:
    """out [T, K] = silu(x[:, :K]) * x[:, K:]. Takes the last axis, and gates first (`turn`), only."""
    if axis != -1 or not turn or x.dtype != out.dtype or not fits(FLOATS, x, out):
        return REFUSED

    def run(x: torch.Tensor, out: torch.Tensor) -> None:
        gate, up = x.float().chunk(2, -1)
        out.copy_(F.silu(gate).mul_(up))

    return launch("silu_and_mul", run, [x], [out], 5 * out.numel())


def rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor | None,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
) -> int:
    """Turn query [T, Hq * D] and key [T, Hkv * D], in place, by rows `positions` [T] int64 of cos_sin_cache [P, F]."""
    heads = [x for x in (query, key) if x is not None]
    same = all(x.dtype == cos_sin_cache.dtype for x in heads)
    if not (is_neox and same and fits(FLOATS, cos_sin_cache, *heads) and fits(torch.int64, positions)):
        return REFUSED

    def run(positions: torch.Tensor, cos_sin: torch.Tensor, *heads: torch.Tensor) -> None:
        cos, sin = cos_sin[positions].float()[:, None].chunk(2, -1)
        for x in heads:
            turned = x.view(len(x), x.shape[1] // head_size, head_size)[..., : cos_sin.shape[1]]
            x1, x2 = turned.float().chunk(2, -1)
            turned.copy_(torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), -1))

    return launch("rotary_embedding", run, [positions, cos_sin_cache], heads, 6 * query.numel())


def matmul(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor, *, bias: torch.Tensor | None = None) -> int:
    """out [T, N] = x [T, K] times w [N, K], transposed, plus bias [N] float32. N is bounded."""
    same = x.dtype == w.dtype == out.dtype
    if len(w) > MAX_N or not (same and fits(FLOATS, x, w, out) and fits(torch.float32, bias)):
        return REFUSED

    def run(x: torch.Tensor, w: torch.Tensor, *rest: torch.Tensor) -> None:
        # The host's own product sums in float32, and rounds once with a bias that the activations' dtype holds.
        rest[-1].copy_(F.linear(x, w, rest[0].to(x.dtype) if len(rest) > 1 else None))

    reads = [x, w] if bias is None else [x, w, bias]
    return launch("matmul", run, reads, [out], 2 * x.shape[0] * w.numel())
