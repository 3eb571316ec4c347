"""How far the result of one call is from what its inputs make it, beside our own reference in the same dtype.

The bound is generous: it is there to find which kernel is wrong, not to certify one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from conformance.bounds import ROUNDOFF, eta
from conformance.engine.measure import ratio

OWN_TIMES = 4.0
"""A row may be off by so many times the rms error of our own kernel, and by a part of its own rms."""

PART_ROUNDOFFS, LEAST_PART = 2.0, 2.0**-18
"""That part: of the dtype, but sums in float32 are not better than the least."""


@dataclass(frozen=True)
class Apart:
    """Error and what is allowed, of the row where their ratio is greatest."""

    error: float
    allowed: float

    @property
    def ratio(self) -> float:
        return ratio(self.error, self.allowed)

    def __str__(self) -> str:
        return f"error {self.error:.3g}, allowed {self.allowed:.3g}"


def apart(found: Any, exact: Any, ours: Any) -> Apart:
    """Results on the host; of several, the worst. Integers must be the same.

    exact   by the reference in float64
    ours    by the reference in the dtype of the inputs
    """
    if isinstance(found, tuple):
        each = [apart(*results) for results in zip(found, exact, ours, strict=True)]
        return max(each, key=lambda a: a.ratio)
    if found.shape != exact.shape:
        return Apart(math.inf, 0.0)
    if not found.is_floating_point():
        return Apart(float((found != exact).sum()), 0.0)
    if not found.numel():
        return Apart(0.0, 0.0)
    name = str(found.dtype).removeprefix("torch.")
    part = max(PART_ROUNDOFFS * ROUNDOFF[name], LEAST_PART)
    error_R = _rms(found.double() - exact.double())
    allowed_R = OWN_TIMES * _rms(ours.double() - exact.double()) + part * _rms(exact.double()) + eta(name)
    return _worst(error_R, allowed_R)


def _rms(x: torch.Tensor) -> torch.Tensor:
    """Of rows along the last axis."""
    return x.reshape(-1, x.shape[-1] if x.dim() else 1).square().mean(-1).sqrt()


def stored_apart(back: torch.Tensor, given: torch.Tensor, kv_error: float) -> Apart:
    """Entries [T, H, D] as they come back from the cache, beside those that were written."""
    name = str(given.dtype).removeprefix("torch.")
    part = kv_error + ROUNDOFF[name] if kv_error else 0.0
    error_R = (back.double() - given.double()).abs().amax(-1).flatten()
    allowed_R = part * given.double().abs().amax(-1).flatten()
    return _worst(error_R, allowed_R)


def _worst(error_R: torch.Tensor, allowed_R: torch.Tensor) -> Apart:
    ratios_R = torch.tensor([ratio(*pair) for pair in zip(error_R.tolist(), allowed_R.tolist(), strict=True)])
    if not len(ratios_R):
        return Apart(0.0, 0.0)
    at = int(ratios_R.argmax())
    return Apart(float(error_R[at]), float(allowed_R[at]))
