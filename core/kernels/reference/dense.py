"""Dense arithmetic: products with weights, norms, rope, activations.

Where a product of terms is rounded on the way, it is where transformers' Llama rounds it, so that text can be
compared with transformers. Legend: T tokens, H heads, D head size, K and N columns in and out, F rotated sizes.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from core.errors import ConfigError
from core.kernels.schemes import QUANTISED, Quantised

Weight = torch.Tensor | Quantised

# Of a weight that is dequantised for a product, at a time.
_PIECE_BYTES = 64 * 2**20


def _wide(x: torch.Tensor) -> torch.Tensor:
    """x in float32, or in its own dtype where that is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def gelu(x: torch.Tensor) -> torch.Tensor:
    """x times the normal distribution function. F.gelu gives a row other bits where there are gaps between rows."""
    wide = _wide(x)
    y: torch.Tensor = wide * 0.5 * (1 + (wide * 0.5**0.5).erf())
    return y.to(x.dtype)


_ACTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def pack_weight(w: Weight, *, scheme: str = "dense") -> Weight:
    """The weight [N, K] in the form that `linear` takes; called once, at load. Schemes: `core.kernels.schemes`.

    Raises: ConfigError for a scheme other than "dense", "q4_1" and "q8_0".
    """
    if scheme != "dense" and scheme not in QUANTISED:
        raise ConfigError(
            f"weights of scheme {scheme!r} have no reference kernel, which takes dense, {', '.join(QUANTISED)}: "
            "convert the weights, or use a device whose plugin supports the scheme"
        )
    return w.contiguous() if isinstance(w, torch.Tensor) else w


def linear(x: torch.Tensor, handle: Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [T, K] times the packed weight [N, K], transposed, plus bias [N]: [T, N] in the dtype of x.

    A quantised weight is dequantised in float32 and rounded to the dtype of x, a piece of its rows at a time.
    """
    if isinstance(handle, torch.Tensor):
        return F.linear(x, handle, bias)
    step = max(1, _PIECE_BYTES // (4 * x.shape[1]))
    parts = []
    for first in range(0, len(handle.codes), step):
        piece = handle.rows(first, first + step).dequantised().to(x.dtype)
        parts.append(F.linear(x, piece, None if bias is None else bias[first : first + step]))
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def quant_act(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [T, K] -> codes [T, K] int8 and scale [T] float32, x ~ codes * scale; symmetric, one scale per row.

    scale is the greatest magnitude / 127; a row of zeros has scale 0 and codes 0. Ties round to even.
    """
    wide = x.float()
    scale = wide.abs().amax(-1) / 127
    codes = (wide / scale[:, None]).round().clamp(-127, 127)
    return codes.masked_fill(scale[:, None] == 0, 0).to(torch.int8), scale


def rms_norm(x: torch.Tensor, w: torch.Tensor, *, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps), rounded to the dtype of x, times w [K]: [..., K].

    Source: transformers, LlamaRMSNorm (the order of rounding); Zhang and Sennrich 2019, arXiv:1910.07467.
    """
    wide = _wide(x)
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return w * normed.to(x.dtype)


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    w: torch.Tensor,
    *,
    eps: float,
    scale_add: Callable[..., Any],
    rms_norm: Callable[..., Any],
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of x + residual, and x + residual; both [T, K]."""
    total = scale_add(x, residual, scale=1.0)
    return rms_norm(total, w, eps=eps), total


def rope(x: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    """Rotate the pairs (i, i + F/2) of x [T, H, D]; cos_sin [T, F] holds F/2 cosines, then F/2 sines.

    Dimensions from F on pass unchanged. Every product is rounded to the dtype of x.
    Source: transformers, apply_rotary_pos_emb (the pairing and rounding); Su et al. 2021, arXiv:2104.09864.
    """
    num_rotated = cos_sin.shape[-1]
    cos, sin = cos_sin[:, None].chunk(2, -1)
    x1, x2 = x[..., :num_rotated].chunk(2, -1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin, x[..., num_rotated:]), -1)


def act_mul(x: torch.Tensor, *, act: str) -> torch.Tensor:
    """act(x[:, :K]), rounded to the dtype of x, times x[:, K:]: [T, 2K] -> [T, K].

    act is "silu", "gelu" or "gelu_tanh".
    """
    gate, up = x.chunk(2, -1)
    return _ACTS[act](gate) * up


def scale_add(x: torch.Tensor, y: torch.Tensor, *, scale: float) -> torch.Tensor:
    """x * scale + y, rounded once to the dtype of x."""
    return (_wide(x) * scale + _wide(y)).to(x.dtype)


def softcap(x: torch.Tensor, *, cap: float) -> torch.Tensor:
    """cap * tanh(x / cap), rounded once to the dtype of x."""
    return (torch.tanh(_wide(x) / cap) * cap).to(x.dtype)
