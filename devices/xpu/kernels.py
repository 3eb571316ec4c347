"""Rows for which torch has one operator on Intel GPUs. All others run on their references, on the device."""

import torch
import torch.nn.functional as F

from core.kernels.row import Implementation
from core.plugin import DeviceFacts, Support


def implementations(facts: DeviceFacts) -> list[Implementation]:
    """Provider "xpu". None claims batch invariance, which nobody has measured."""
    dtypes = frozenset(facts.dtypes)
    support, dense = Support(dtypes=dtypes), Support(dtypes=dtypes, schemes=frozenset({"dense"}))
    return [
        Implementation("linear", linear, "xpu", dense),
        Implementation("rms_norm", rms_norm, "xpu", support),
        Implementation("add_rms_norm", add_rms_norm, "xpu", support),
    ]


def linear(x: torch.Tensor, handle: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [T, K] times the weight [N, K], transposed, plus bias [N]: [T, N]."""
    return F.linear(x, handle, bias)


def rms_norm(x: torch.Tensor, w: torch.Tensor, *, eps: float) -> torch.Tensor:
    """The norm of x [..., K] times w [K]."""
    return torch.rms_norm(x, w.shape, w, eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor, *, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of x + residual, and x + residual, which takes the place of `residual`."""
    residual.add_(x)
    return torch.rms_norm(residual, w.shape, w, eps), residual
