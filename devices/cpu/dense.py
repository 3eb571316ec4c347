"""Rope, activations and embedding on the CPU, in few calls of torch: a small batch costs calls, not arithmetic.

Legend: T tokens, H heads, D head size, K columns, F rotated sizes, V vocabulary, E hidden size.
"""

import torch
import torch.nn.functional as F

from core.kernels.reference import dense as reference


def rope(x: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    """Rotate the pairs (i, i + F/2) of x [T, H, D] by cos_sin [T, F]. Rounds the first product and the sum."""
    num_rotated = cos_sin.shape[-1]
    half = num_rotated // 2
    cos, sin = cos_sin[:, None, :half], cos_sin[:, None, half:]
    x1, x2 = x[..., :half], x[..., half:num_rotated]
    out = torch.empty_like(x)
    torch.mul(x1, cos, out=out[..., :half]).addcmul_(x2, sin, value=-1)
    torch.mul(x2, cos, out=out[..., half:num_rotated]).addcmul_(x1, sin)
    if num_rotated < x.shape[-1]:
        out[..., num_rotated:] = x[..., num_rotated:]
    return out


def act_mul(x: torch.Tensor, *, act: str) -> torch.Tensor:
    """act(x[:, :K]) times x[:, K:]: [T, 2K] -> [T, K]; act is "silu", "gelu" or "gelu_tanh"."""
    gate, up = x.chunk(2, -1)
    if act == "gelu":
        return reference.gelu(gate).mul_(up)
    active = F.silu(gate) if act == "silu" else F.gelu(gate, approximate="tanh")
    return active.mul_(up)


def embed(ids: torch.Tensor, table: torch.Tensor, *, first: int) -> torch.Tensor:
    """Rows of `table` [V, E], which holds the ids from `first` on: [T, E]. Ids held elsewhere give zeros."""
    local = ids - first if first else ids
    foreign = (local < 0) | (local >= table.shape[0])
    x = table.index_select(0, local.clamp(0, table.shape[0] - 1))
    return x.masked_fill_(foreign[:, None], 0) if foreign.any() else x
