"""Norms, rope and activations in bfloat16 by the library's kernels: in float32, each result rounded once.

Legend: T tokens, H heads, D head size, K columns, F rotated sizes.
"""

import torch

from devices.cpu import dense
from devices.cpu.native import calls, jobs, library


class RowKernels:
    """Of one variant."""

    def __init__(self, variant: str) -> None:
        kernels = library.load(variant)
        self._norm, self._rope, self._act_mul = kernels.norm, kernels.rope, kernels.act_mul

    def rms_norm(self, x: torch.Tensor, w: torch.Tensor, *, eps: float) -> torch.Tensor:
        """The norm of x [..., K] times w [K]."""
        rows = x if x.dim() in (2, 3) and x.stride(-1) == 1 else x.reshape(-1, x.shape[-1]).contiguous()
        y = calls.empty(x.shape, x.dtype)
        self._call_norm(rows, None, w, y, eps)
        return y

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor, *, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm of x + residual [T, K], and x + residual, which takes the place of `residual`."""
        x = x if x.stride(1) == 1 else x.contiguous()
        residual = residual.contiguous()
        y = calls.empty(x.shape, x.dtype)
        self._call_norm(x, residual, w, y, eps)
        return y, residual

    def rope(self, x: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
        """Rotate the pairs (i, i + F/2) of x [T, H, D] in place by cos_sin [T, F]."""
        x = x if x.stride(2) == 1 else x.contiguous()
        cos_sin = cos_sin.contiguous()
        shape = (x.shape[0], x.shape[1], cos_sin.shape[1] // 2)
        job = jobs.Rope(x.data_ptr(), x.stride(0), x.stride(1), cos_sin.data_ptr(), *shape)
        calls.call(self._rope, job)
        return x

    def act_mul(self, x: torch.Tensor, *, act: str) -> torch.Tensor:
        """act(x[:, :K]) times x[:, K:]: [T, 2K] -> [T, K]; act is "silu", "gelu" or "gelu_tanh"."""
        if act == "gelu":  # torch has erf
            return dense.act_mul(x, act=act)
        x = x if x.stride(1) == 1 else x.contiguous()
        y = calls.empty((x.shape[0], x.shape[1] // 2), x.dtype)
        job = jobs.ActMul(x.data_ptr(), x.stride(0), y.data_ptr(), *y.shape, act == "gelu_tanh")
        calls.call(self._act_mul, job)
        return y

    def _call_norm(
        self, x: torch.Tensor, residual: torch.Tensor | None, w: torch.Tensor, y: torch.Tensor, eps: float
    ) -> None:
        """x is [..., K] of two or three dimensions, with numbers of a row side by side."""
        of_residual, w = None if residual is None else residual.data_ptr(), w.contiguous()
        inner = x.shape[-2]
        rows, groups = (inner, 0) if x.dim() == 2 else (x.shape[0] * inner, x.stride(0))
        places = x.data_ptr(), x.stride(-2), max(1, inner), groups
        job = jobs.Norm(*places, of_residual, w.data_ptr(), y.data_ptr(), rows, x.shape[-1], eps)
        calls.call(self._norm, job)
