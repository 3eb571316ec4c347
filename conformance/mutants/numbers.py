"""Roundings that kernels must not do, for those that do them."""

from __future__ import annotations

import torch

_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


def toward_zero(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x stored by cutting bits off, as a shift does."""
    y = x.to(dtype)
    over = y.double().abs() > x.double().abs()
    bits = y.contiguous().view(_BITS[dtype])  # sign and magnitude: one less is one step towards zero
    return torch.where(over, bits - 1, bits).view(dtype)


def next_up(x: torch.Tensor) -> torch.Tensor:
    """The next number away from zero."""
    return (x.contiguous().view(_BITS[x.dtype]) + 1).view(x.dtype)


def cut(x: torch.Tensor, bits: int) -> torch.Tensor:
    """float32 x with the first `bits` of 24 bits of its significand."""
    mask = -(1 << (24 - bits))
    return (x.contiguous().view(torch.int32) & mask).view(torch.float32)


def rounded(x: torch.Tensor, bits: int) -> torch.Tensor:
    """float32 x rounded to a significand of `bits` bits. NaN stays as it is."""
    return cut((x.contiguous().view(torch.int32) + (1 << (23 - bits))).view(torch.float32), bits).where(~x.isnan(), x)
