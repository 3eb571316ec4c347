"""Norms by their definition, in float64."""

from __future__ import annotations

import numpy as np

from conformance.bounds import ROUNDOFF, W, eta, kappa
from conformance.draw import Floats

ROUNDINGS = 2  # x / rms, then its product with w


def rms_norm(x: Floats, w: Floats, eps: float) -> Floats:
    """x / sqrt(mean(x^2) + eps) * w, over the last axis. Source: Zhang and Sennrich 2019, arXiv:1910.07467."""
    return np.asarray(x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps) * w)


def rms_norm_bound(y: Floats, w: Floats, dtype: str) -> Floats:
    """Of the error of y: ROUNDINGS in the stored dtype, and a sum of squares in float32.

    Where x / rms is subnormal, its rounding is absolute, and w multiplies it.
    """
    relative = ROUNDINGS * ROUNDOFF[dtype] + kappa(y.shape[-1]) * W
    return np.asarray(relative * np.abs(y) + eta(dtype) * (1 + np.abs(w)))
