"""Rotary position embedding by its definition, in float64, and how far off a kernel may be."""

from __future__ import annotations

import numpy as np

from conformance.bounds import ROUNDOFF, W, eta
from conformance.draw import Floats
from conformance.oracle.elementwise import TERMS


def rope(x: Floats, cos_sin: Floats) -> tuple[Floats, Floats]:
    """x [T, H, F] turned, and the magnitudes of its terms: pairs (i, i + F/2) by cos_sin [T, F], cosines first.

    Source: Su et al. 2021, arXiv:2104.09864, equation 15, with the pairing of GPT-NeoX.
    """
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    cos, sin = cos_sin[:, None, :half], cos_sin[:, None, half:]
    y = np.concatenate((first * cos - second * sin, second * cos + first * sin), -1)
    terms = np.concatenate((np.abs(first * cos) + np.abs(second * sin), np.abs(second * cos) + np.abs(first * sin)), -1)
    return y, terms


def rope_bound(y: Floats, terms: Floats, dtype: str) -> Floats:
    """Both products may be rounded, and the sum is."""
    u = ROUNDOFF[dtype]
    return np.asarray(u * np.abs(y) + (u + TERMS * W) * terms + 3 * eta(dtype))


def turns(base: tuple[Floats, Floats], positions: Floats) -> tuple[Floats, Floats]:
    """Cosines and sines [T, F/2] of `positions` times the angles whose cosines and sines [F/2] are `base`.

    By squaring complex numbers, with products and sums alone, so that they are the same with every C library.
    """
    num = len(base[0])
    cos, sin = np.ones((len(positions), num)), np.zeros((len(positions), num))
    power_cos, power_sin = base
    left = positions.astype(np.int64)[:, None]
    while left.any():
        odd = left % 2 == 1
        turned = cos * power_cos - sin * power_sin, cos * power_sin + sin * power_cos
        cos, sin = np.where(odd, turned[0], cos), np.where(odd, turned[1], sin)
        power_cos, power_sin = power_cos**2 - power_sin**2, 2 * power_cos * power_sin
        left = left // 2
    return cos, sin
