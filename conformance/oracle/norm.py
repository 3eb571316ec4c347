"""Norms by their definition, in float64."""

from __future__ import annotations

import numpy as np

from conformance.draw import Floats


def rms_norm(x: Floats, w: Floats, eps: float) -> Floats:
    """x / sqrt(mean(x^2) + eps) * w, over the last axis. Source: Zhang and Sennrich 2019, arXiv:1910.07467."""
    return np.asarray(x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps) * w)
