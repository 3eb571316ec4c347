"""From logits to ids by the definition, in float64: what may be drawn, and what logits become.

A draw compares a uniform number with sums of weights. Sums in float32 are a little off, so near a boundary either
neighbour is right: `admissible` says which ids are, with sums off by at most `slack` of the total.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from conformance.draw import Floats
from core.kernels.reference.sampling import WORD, philox

Ints = npt.NDArray[np.int64]


def uniform(seed: Ints, counter: Ints) -> Floats:
    """One number in [0, 1) per row: the first word of Philox4x32-10, its upper 24 bits. seed [L, 2], counter [L].

    The generator is part of the contract and checked against its published vectors elsewhere.
    """
    words = seed & WORD
    zero = np.zeros_like(words[:, 0])
    first = philox((counter & WORD, zero, zero, zero), (words[:, 0], words[:, 1]))[0]
    return np.asarray((first >> 8) * 2.0**-24, np.float64)


def ranking(logits: Floats) -> Ints:
    """Ids of one row, likeliest first, equals by id."""
    return np.lexsort((np.arange(len(logits)), -logits))


def admissible(logits: Floats, temperature: float, top_k: int, top_p: float, u: float, slack: float) -> set[int]:
    """Ids that a draw of one row may give; {-1} for a row without a finite maximum."""
    top = logits.max()
    if not np.isfinite(top):
        return {-1}
    order = ranking(logits)
    if temperature == 0:
        return {int(order[0])}
    weights = np.exp((logits - top) / temperature)
    if 0 < top_k < len(logits):
        order = order[:top_k]
    sums = np.cumsum(weights[order])
    return {
        token for count in _counts(sums, top_p, slack) for token in _reached(weights, np.sort(order[:count]), u, slack)
    }


def _counts(sums: Floats, top_p: float, slack: float) -> range:
    """How many of the likeliest tokens hold top_p of the total: from the least to the most that rounding allows."""
    if top_p >= 1:
        return range(len(sums), len(sums) + 1)
    total = sums[-1]
    least = int((sums < (top_p - slack) * total).sum()) + 1
    most = int((sums < (top_p + slack) * total).sum()) + 1
    return range(min(least, len(sums)), min(most, len(sums)) + 1)


def _reached(weights: Floats, kept: Ints, u: float, slack: float) -> list[int]:
    """Kept ids, in order, at which the sum of weights passes u of the whole."""
    ends = np.cumsum(weights[kept])
    total = ends[-1]
    starts = ends - weights[kept]
    inside = (weights[kept] > 0) & (ends >= (u - slack) * total) & (starts <= (u + slack) * total)
    return [int(token) for token in kept[inside]]


def penalize(
    logits: Floats, history: Ints, num_prompt: Ints, repetition: Floats, frequency: Floats, presence: Floats
) -> Floats:
    """Source: Keskar et al. 2019, arXiv:1909.05858 (repetition); OpenAI's API reference (frequency, presence)."""
    out = logits.copy()
    for row, ids in enumerate(history):
        known = ids[ids >= 0]
        output = ids[num_prompt[row] :]
        for token in np.unique(known):
            x = out[row, token]
            out[row, token] = x / repetition[row] if x > 0 else x * repetition[row]
        for token, times in zip(*np.unique(output[output >= 0], return_counts=True), strict=True):
            out[row, token] -= frequency[row] * times + presence[row]
    return out


def log_softmax(logits: Floats) -> Floats:
    """Of each row."""
    top = logits.max(-1, keepdims=True)
    return np.asarray(logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True)))
