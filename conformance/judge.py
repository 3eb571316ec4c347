"""The checks A, B, C and D: a result against its expected value in float64.

A  every element within its own bound
B  the rms error of rows beside that of our own eager kernel in the same dtype
C  no bias towards zero or away from it
D  the same bits
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from conformance.bounds import (
    BIAS,
    MIN_FOR_BIAS,
    MIN_ROW_FOR_RMS,
    MIN_ROWS_FOR_P95,
    RMS_MAX,
    RMS_P95,
    ROUNDOFF,
    SIGMAS,
)
from conformance.case import Finding
from conformance.draw import Floats, exact
from core.kernels.dtypes import TORCH_DTYPES

_BYTES = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True)
class Expected:
    """What a result must be.

    bits    the very result, for D; or else
    value   in float64, and
    bound   of the error of each element, for A
    dtype   that the result must be stored in, also for B and C; empty: any
    rms     whether B applies: rows along the last axis
    noise   rms error of each row from roundings that are permitted on the way, for B and C; None: there are none
    bias    whether C applies: not where results are few values, or a few decide the mean, so that errors do not cancel
    """

    bits: torch.Tensor | None = None
    value: Floats | None = None
    bound: Floats | None = None
    dtype: str = ""
    rms: bool = True
    noise: Floats | None = None
    bias: bool = True


def judge(output: str, expected: Expected, got: torch.Tensor, eager: torch.Tensor | None = None) -> list[Finding]:
    """Findings about one result. `eager` is our own kernel's, for B."""
    if expected.bits is not None:
        return [same_bits(output, expected.bits, got)]
    value, bound = expected.value, expected.bound
    assert value is not None
    assert bound is not None
    if tuple(got.shape) != value.shape:
        return [Finding("A", output, float("inf"), f"shape {tuple(got.shape)}, not {value.shape}")]
    if expected.dtype and got.dtype != TORCH_DTYPES[expected.dtype]:
        return [Finding("A", output, float("inf"), f"{got.dtype}, not {expected.dtype}")]
    y = exact(got)
    found = [_elementwise(output, value, bound, y)]
    finite = np.isfinite(value)
    by_rms = expected.rms and value.size and value.shape[-1] >= MIN_ROW_FOR_RMS
    rounded = expected.bias and expected.dtype in ("bfloat16", "float16") and value.size >= MIN_FOR_BIAS
    with np.errstate(invalid="ignore", over="ignore"):  # a kernel may give anything
        if eager is not None and by_rms and finite.all():
            found.append(_rms(output, value, y, exact(eager), ROUNDOFF[expected.dtype], expected.noise))
        if rounded and finite.all():
            found.append(_bias(output, value, y, ROUNDOFF[expected.dtype], expected.noise))
    return found


def same_bits(output: str, wanted: torch.Tensor, got: torch.Tensor, check: str = "D") -> Finding:
    """Whether two results are the same in shape, dtype and bits; NaN equals the same NaN."""
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        detail = f"{got.dtype} {tuple(got.shape)}, not {wanted.dtype} {tuple(wanted.shape)}"
        return Finding(check, output, float("inf"), detail)
    different = raw(wanted) != raw(got)
    if not different.any():
        return Finding(check, output, 0.0)
    where = np.argwhere(different)[0].tolist()
    shown = f"{got.cpu()[tuple(where)]} at {where}, not {wanted.cpu()[tuple(where)]}"
    return Finding(check, output, float("inf"), f"{int(different.sum())} of {different.size} differ: {shown}")


def raw(x: torch.Tensor) -> npt.NDArray[np.unsignedinteger]:
    """A tensor's bits, as unsigned integers of its shape."""
    x = x.detach().cpu().contiguous()
    size = x.element_size()
    flat = x.reshape(-1).view(torch.uint8).numpy() if x.numel() else np.zeros(0, np.uint8)
    return flat.view(_BYTES[size]).reshape(tuple(x.shape))


def _elementwise(output: str, value: Floats, bound: Floats, y: Floats) -> Finding:
    if not value.size:
        return Finding("A", output, 0.0)
    finite = np.isfinite(value)
    with np.errstate(invalid="ignore", over="ignore"):
        as_wanted = (y == value) | (np.isnan(y) & np.isnan(value))
        error = np.where(finite, np.abs(y - value), np.where(as_wanted, 0.0, np.inf))
        ratio = np.where(error == 0, 0.0, error / np.where(bound > 0, bound, np.nan))
    ratio = np.where(np.isnan(ratio), np.inf, ratio)  # NaN, or an error where none is allowed
    worst = int(ratio.argmax())
    at = [int(i) for i in np.unravel_index(worst, value.shape)]
    return Finding("A", output, float(ratio.flat[worst]), f"{y.flat[worst]:.9g} at {at}, not {value.flat[worst]:.9g}")


def _rms(output: str, value: Floats, y: Floats, eager: Floats, u: float, noise: Floats | None) -> Finding:
    def rows(x: Floats) -> Floats:
        return np.asarray(np.sqrt(np.mean(np.square(x.reshape(-1, value.shape[-1])), -1)))

    allowed = np.maximum(rows(eager - value), 0.5 * u * rows(value))
    if noise is not None:
        allowed = np.hypot(allowed, noise.reshape(-1))
    measured = rows(y - value)
    ratio = np.divide(measured, allowed, out=np.where(measured > 0, np.inf, 0.0), where=allowed > 0)
    ratio = np.where(np.isnan(ratio), np.inf, ratio)
    most = float(ratio.max())
    p95 = float(np.quantile(ratio, 0.95, method="higher")) if len(ratio) >= MIN_ROWS_FOR_P95 else 0.0
    return Finding("B", output, max(p95 / RMS_P95, most / RMS_MAX), f"p95 {p95:.3g}, most {most:.3g} of our own")


def _bias(output: str, value: Floats, y: Floats, u: float, noise: Floats | None) -> Finding:
    with np.errstate(invalid="ignore"):  # infinities of both signs
        off = abs(float(np.mean(np.sign(value) * (y - value))))
    allowed = BIAS * u * float(np.mean(np.abs(value)))
    if noise is not None:  # errors of a row may all have one sign, but rows err apart
        allowed += SIGMAS * float(np.sqrt(np.sum(np.square(noise)))) / noise.size
    if allowed == 0:
        return Finding("C", output, 0.0 if off == 0 else float("inf"), f"off by {off:.3g}")
    ratio = off / allowed
    return Finding("C", output, ratio if np.isfinite(ratio) else float("inf"), f"off by {off:.3g}")
