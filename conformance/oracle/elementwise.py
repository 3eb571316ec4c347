"""Elementwise kernels by their definitions, in float64, and how far off a kernel may be.

Bounds are `roundings * u |y| + some W M + eta`, M the sum of the magnitudes of a result's terms.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from conformance.bounds import EXP_ERROR, ROUNDOFF, W, eta
from conformance.draw import Floats

TERMS = 8
"""How many W of M a few operations in float32 may add up to."""

_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def _sigmoid(x: Floats) -> Floats:
    """1 / (1 + exp(-x)), without overflow."""
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1, small) / (1 + small))


def silu(x: Floats) -> Floats:
    """Source: Elfwing et al. 2017, arXiv:1702.03118."""
    return np.asarray(x * _sigmoid(x))


def gelu(x: Floats) -> Floats:
    """x times the normal distribution function. Source: Hendrycks and Gimpel 2016, arXiv:1606.08415."""
    return np.asarray(x * _erfc(-x / math.sqrt(2)) / 2)


def gelu_tanh(x: Floats) -> Floats:
    """The tanh form of the same paper; (1 + tanh z) / 2 is sigmoid(2 z)."""
    with np.errstate(over="ignore"):
        return np.asarray(x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ACTS: dict[str, Callable[[Floats], Floats]] = {"silu": silu, "gelu": gelu, "gelu_tanh": gelu_tanh}


def act_mul_bound(gate: Floats, up: Floats, act: str, dtype: str) -> Floats:
    """act(gate) may be rounded before `up` multiplies it.

    An act is gate times something up to 1 that may be had from exp, tanh or erf, so its error is a part of gate, even
    where the result tends to 0. The argument of silu's exp may be off by W of itself, too.
    """
    scale, y = np.abs(gate * up), np.abs(ACTS[act](gate) * up)
    computed = (TERMS * W + EXP_ERROR / 2) * scale
    if act == "silu":
        computed += TERMS * W * np.abs(gate) * _sigmoid(-gate) * y
    return np.asarray(2 * ROUNDOFF[dtype] * y + computed + eta(dtype) * (1 + np.abs(up)))


def scale_add(x: Floats, y: Floats, scale: float) -> Floats:
    """x * scale + y."""
    return np.asarray(x * scale + y)


def scale_add_bound(x: Floats, y: Floats, scale: float, dtype: str) -> Floats:
    """Rounded once; `scale` may be rounded to float32."""
    terms = np.abs(x * scale) + np.abs(y)
    return np.asarray(ROUNDOFF[dtype] * np.abs(scale_add(x, y, scale)) + TERMS * W * terms + eta(dtype))


def softcap(x: Floats, cap: float) -> Floats:
    """cap * tanh(x / cap). Source: Gemma Team 2024, arXiv:2408.00118."""
    return np.asarray(cap * np.tanh(x / cap))


def softcap_bound(x: Floats, cap: float, dtype: str) -> Floats:
    """Rounded once. tanh may be had from an exponential, as 2 / (1 + exp(-2 z)) - 1, so its error is a part of 1."""
    y = np.abs(softcap(x, cap))
    return np.asarray((ROUNDOFF[dtype] + TERMS * W) * y + EXP_ERROR * cap + eta(dtype))
