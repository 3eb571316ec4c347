"""Rows for which torch has one operator, for devices on which that is faster than the reference.

Legend: T tokens, K and N columns in and out.
"""

import torch
import torch.nn.functional as F


def linear(x: torch.Tensor, handle: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [T, K] times the weight [N, K], transposed, plus bias [N]: [T, N]."""
    return F.linear(x, handle, bias)


def rms_norm(x: torch.Tensor, w: torch.Tensor, *, eps: float) -> torch.Tensor:
    """The norm of x [..., K] times w [K], rounded once where torch's operator does so."""
    return torch.rms_norm(x, w.shape, w, eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor, *, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of x + residual, and x + residual, which takes the place of `residual`."""
    residual.add_(x)
    return torch.rms_norm(residual, w.shape, w, eps), residual
