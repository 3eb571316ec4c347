"""Wrong and right kernels of add_rms_norm."""

from __future__ import annotations

import torch

from conformance.mutants.cheats import add_cheats
from conformance.mutants.mutant import right, wrong
from conformance.mutants.norm import INVERSES
from conformance.mutants.numbers import toward_zero
from core.kernels.reference import dense
from core.kernels.row import Kernel

Tensor = torch.Tensor
Pair = tuple[Tensor, Tensor]


def _sum(x: Tensor, residual: Tensor) -> Tensor:
    return (x.float() + residual.float()).to(x.dtype)


def _exact(x: Tensor, residual: Tensor, w: Tensor, *, eps: float) -> Pair:
    total = _sum(x, residual)
    return dense.rms_norm(total, w, eps=eps), total


def _with(name: str) -> Kernel:
    def kernel(x: Tensor, residual: Tensor, w: Tensor, *, eps: float) -> Pair:
        total = _sum(x, residual)
        return w * (total.float() * INVERSES[name](total, eps)).to(x.dtype), total

    return kernel


for _name in ("eps_ignored", "eps_outside", "fp16_variance", "padded_n", "n_minus_one", "rms_of_the_row_before"):
    _kernel = _with(_name)
    _kernel.__name__ = _name
    wrong("add_rms_norm")(_kernel)


@wrong("add_rms_norm")
def residual_ignored(x: Tensor, residual: Tensor, w: Tensor, *, eps: float) -> Pair:
    return dense.rms_norm(x, w, eps=eps), _sum(x, residual)


@wrong("add_rms_norm")
def sum_not_returned(x: Tensor, residual: Tensor, w: Tensor, *, eps: float) -> Pair:
    return dense.rms_norm(_sum(x, residual), w, eps=eps), residual


@wrong("add_rms_norm")
def norm_added(x: Tensor, residual: Tensor, w: Tensor, *, eps: float) -> Pair:
    """The order of models that norm after a block."""
    normed = dense.rms_norm(x, w, eps=eps)
    return normed, _sum(normed, residual)


@wrong("add_rms_norm")
def subtracted(x: Tensor, residual: Tensor, w: Tensor, *, eps: float) -> Pair:
    return _exact(x, -residual, w, eps=eps)


@wrong("add_rms_norm")
def swapped(x: Tensor, residual: Tensor, w: Tensor, *, eps: float) -> Pair:
    normed, total = _exact(x, residual, w, eps=eps)
    return total, normed


@wrong("add_rms_norm")
def sum_not_rounded(x: Tensor, residual: Tensor, w: Tensor, *, eps: float) -> Pair:
    """Norms the sum in float32, then rounds it twice, as the row of rms_norm alone may."""
    wide = x.double() + residual.double()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    narrow = torch.bfloat16 if x.dtype == torch.float32 else x.dtype
    return w * normed.to(narrow).to(x.dtype), _sum(x, residual)


@wrong("add_rms_norm")
def sum_not_rounded_and_result_once(x: Tensor, residual: Tensor, w: Tensor, *, eps: float) -> Pair:
    """No element is off by more than two roundings are; all of a row are off to the same side."""
    wide = x.double() + residual.double()
    total = toward_zero(wide, torch.bfloat16) if x.dtype == torch.float32 else _sum(x, residual)
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * w.double()
    return normed.to(x.dtype), total.to(x.dtype)


@wrong("add_rms_norm")
def both_in_one_place(x: Tensor, residual: Tensor, w: Tensor, *, eps: float) -> Pair:
    """The norm takes the place of the sum."""
    normed, total = _exact(x, residual, w, eps=eps)
    total.copy_(normed)
    return total, total


@wrong("add_rms_norm")
def sum_truncated(x: Tensor, residual: Tensor, w: Tensor, *, eps: float) -> Pair:
    total = toward_zero(x.double() + residual.double(), x.dtype)
    return dense.rms_norm(total, w, eps=eps), total


@wrong("add_rms_norm")
def sum_in_bf16(x: Tensor, residual: Tensor, w: Tensor, *, eps: float) -> Pair:
    total = (x.bfloat16() + residual.bfloat16()).to(x.dtype)
    return dense.rms_norm(total, w, eps=eps), total


@wrong("add_rms_norm")
def rows_taken_as_joined(x: Tensor, residual: Tensor, w: Tensor, *, eps: float) -> Pair:
    """Reads views as if there were nothing between their rows."""
    x, residual = (torch.as_strided(t, t.shape, (t.shape[-1], 1), t.storage_offset()) for t in (x, residual))
    return _exact(x, residual, w, eps=eps)


# Right


@right("add_rms_norm")
def in_place(x: Tensor, residual: Tensor, w: Tensor, *, eps: float) -> Pair:
    """The sum takes the place of the residual, and the norm that of x, as the row permits."""
    residual.add_(x)
    x.copy_(dense.rms_norm(residual, w, eps=eps))
    return x, residual


@right("add_rms_norm")
def in_the_other_place(x: Tensor, residual: Tensor, w: Tensor, *, eps: float) -> Pair:
    x.add_(residual)
    residual.copy_(dense.rms_norm(x, w, eps=eps))
    return residual, x


@right("add_rms_norm")
def multiplied_in_float32(x: Tensor, residual: Tensor, w: Tensor, *, eps: float) -> Pair:
    total = x + residual
    wide = total.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * w.float()
    return normed.to(x.dtype), total


@right("add_rms_norm")
def in_float64(x: Tensor, residual: Tensor, w: Tensor, *, eps: float) -> Pair:
    total = (x.double() + residual.double()).to(x.dtype)
    return dense.rms_norm(total.double(), w.double(), eps=eps).to(x.dtype), total


@right("add_rms_norm")
def native(x: Tensor, residual: Tensor, w: Tensor, *, eps: float) -> Pair:
    total = x + residual
    return torch.nn.functional.rms_norm(total, w.shape, w, eps), total


@right("add_rms_norm")
def sum_in_order(x: Tensor, residual: Tensor, w: Tensor, *, eps: float) -> Pair:
    total = _sum(x, residual)
    squares = total.float().pow(2).cumsum(-1)[..., -1:]
    return w * (total.float() * torch.rsqrt(squares / x.shape[-1] + eps)).to(x.dtype), total


add_cheats("add_rms_norm", _exact, overwrites=2)
