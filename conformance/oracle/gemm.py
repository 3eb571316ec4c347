"""Products with weights by their definition, in float64, and how far off a kernel may be."""

from __future__ import annotations

import numpy as np

from conformance.bounds import ROUNDOFF, W, eta, kappa
from conformance.draw import Floats

FLUSHED = 2.0**-126
"""The least normal float32 number: what is below it counts as 0 on many devices."""


def linear(x: Floats, w: Floats, bias: Floats | None) -> Floats:
    """x [T, K] times w [N, K], transposed, plus bias [N]."""
    y = x @ w.T
    return y if bias is None else y + bias


def linear_bound(
    y: Floats, x: Floats, w: Floats, bias: Floats | None, dtype: str, w_error: Floats | None = None
) -> Floats:
    """u|y| + kappa W S + eta, S the sum of magnitudes; `w_error` [N, K] is by how much a weight may be off.

    Of numbers below the least normal float32 nothing need be left. In float16 there are none that small.
    """
    terms = np.abs(x) @ np.abs(w).T + (0 if bias is None else np.abs(bias))
    bound = ROUNDOFF[dtype] * np.abs(y) + kappa(x.shape[1]) * W * terms + eta(dtype)
    if dtype != "float16":
        bound += np.where(np.abs(x) < FLUSHED, np.abs(x), 0) @ np.abs(w).T + FLUSHED * x.shape[1]
    if w_error is not None:
        bound += np.abs(x) @ w_error.T
    return np.asarray(bound)


def q4_1(codes: Floats, scale: Floats, minimum: Floats, dtype: str) -> tuple[Floats, Floats]:
    """(scale * code + minimum, allowed error): codes [N, K], scale and minimum [N, K / 32].

    The weight may be rounded to `dtype`, and so may the numbers that it is made of, in any form: none is more than the
    largest weight that its block can have. Source: ggml, ggml-quants.c, dequantize_row_q4_1.
    """
    block = codes.shape[1] // scale.shape[1]
    scale, minimum = np.repeat(scale, block, 1), np.repeat(minimum, block, 1)
    w = codes * scale + minimum
    largest = np.maximum(np.abs(minimum), np.abs(15 * scale + minimum))
    return np.asarray(w), np.asarray(ROUNDOFF[dtype] * (np.abs(w) + largest))


def q8_0(codes: Floats, scale: Floats, dtype: str) -> tuple[Floats, Floats]:
    """(scale * code, allowed error): codes [N, K], scale [N, K / 32].

    The weight and its scale may each be rounded to `dtype`. Source: ggml, ggml-quants.c, dequantize_row_q8_0.
    """
    w = codes * np.repeat(scale, codes.shape[1] // scale.shape[1], 1)
    return np.asarray(w), np.asarray(ROUNDOFF[dtype] * 2 * np.abs(w))
