"""Quantised activations by their definition, in float64."""

from __future__ import annotations

import numpy as np

from conformance.bounds import W
from conformance.draw import Floats

LARGEST_CODE = 127

SCALE_ERROR = 4 * W
"""Relative; a quotient in float32 of one operation too many."""

TIE_ERROR = 4 * W
"""Relative, of x / scale: how near to the middle between two codes either may be taken."""


def quant_act(x: Floats) -> tuple[Floats, Floats, Floats]:
    """(codes [T, K], their allowed errors, scale [T]) of x [T, K]; ties round to even.

    codes = x / scale, and scale = max |x| / 127. A code may be off by 1 where x / scale is near a tie; not where it is
    exactly in one that float32 has exactly too, that is, where scale is a power of two.
    """
    scale = np.abs(x).max(-1, initial=0) / LARGEST_CODE
    with np.errstate(invalid="ignore"):
        value = np.where(scale[:, None] > 0, x / scale[:, None], 0.0)
    off_tie = np.abs(np.abs(value - np.trunc(value)) - 0.5)
    near = off_tie <= TIE_ERROR * np.abs(value)
    is_power = np.frexp(scale)[0] == 0.5
    allowed = np.where(near & ~is_power[:, None], 1.0, 0.0)
    return np.asarray(np.rint(value)), allowed, np.asarray(scale)
