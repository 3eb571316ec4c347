"""Wrong and right kernels of rms_norm."""

from __future__ import annotations

import torch

from conformance.mutants.mutant import right, wrong


@wrong("rms_norm")
def eps_ignored(x: torch.Tensor, w: torch.Tensor, *, eps: float) -> torch.Tensor:
    wide = x.float()
    return w * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True))).to(x.dtype)


@wrong("rms_norm")
def fp16_variance(x: torch.Tensor, w: torch.Tensor, *, eps: float) -> torch.Tensor:
    half = x.half()
    mean = half.pow(2).mean(-1, keepdim=True).float()
    return w * (x.float() * torch.rsqrt(mean + eps)).to(x.dtype)


@right("rms_norm")
def multiplied_in_float32(x: torch.Tensor, w: torch.Tensor, *, eps: float) -> torch.Tensor:
    wide = x.float()
    return (w.float() * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps))).to(x.dtype)
