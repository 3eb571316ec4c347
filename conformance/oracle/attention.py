"""Attention by its definition, in float64, with the sums that bounds of its error are made of.

Legend: Q queries of one sequence, its last Q tokens; L entries of it; H query heads, Hkv key heads, G = H / Hkv;
D head size.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from conformance.draw import Floats

_SCORES = 1 << 21
"""Scores at a time."""


@dataclass(frozen=True)
class Attended:
    """Attention of some tokens.

    o         [Q, H, D]
    lse       [Q, H], log of the sum of exp(score); -inf where nothing is seen
    spread    [Q, H, D], sum of p |v|
    values    [Q, H, D], sum of |v|
    power     [Q, H], sum of (p |v|)^2, the mean of it over D
    reach     [Q, H], the largest scale * sum |q| |k|
    total     [Q, H], sum of exp(score - max): between 1 and num_keys
    num_keys  [Q, H], how many are seen
    """

    o: Floats
    lse: Floats
    spread: Floats
    values: Floats
    power: Floats
    reach: Floats
    total: Floats
    num_keys: Floats


def joined(parts: list[Attended]) -> Attended:
    """One after the other."""
    return Attended(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Attended)))


def nothing(num_tokens: int, num_heads: int, head_size: int) -> Attended:
    """What tokens get that see nothing."""
    wide, flat = np.zeros((num_tokens, num_heads, head_size)), np.zeros((num_tokens, num_heads))
    return Attended(wide, flat - np.inf, wide, wide, flat, flat, flat + 1, flat)


def attention(
    q: Floats, k: Floats, v: Floats, *, scale: float, window: int | None = None, softcap: float | None = None
) -> Attended:
    """Attention of the last Q tokens of a sequence over its L entries: q [Q, H, D]; k, v [L, Hkv, D].

    The token at position p sees positions <= p, and with a window only those > p - window. Entries that no token sees
    may be NaN. Head h shares key head h // G. softcap c turns a score s into c * tanh(s / c).
    Source: Vaswani et al. 2017, arXiv:1706.03762; Ainslie et al. 2023, arXiv:2305.13245 (shared key heads).
    """
    num_queries, num_heads, head_size = q.shape
    offset, step = len(k) - num_queries, max(1, _SCORES // (num_heads * max(len(k), 1)))
    parts = []
    for begin in range(0, num_queries, step):
        at = np.arange(begin, min(begin + step, num_queries)) + offset
        first = 0 if window is None else max(0, int(at[0]) - window + 1)
        entries = np.arange(first, int(at[-1]) + 1)
        seen = entries <= at[:, None]
        if window is not None:
            seen &= entries > at[:, None] - window
        read = slice(first, int(at[-1]) + 1)
        parts.append(_attend(q[begin : begin + step], k[read], v[read], seen, scale, softcap))
    return joined(parts) if parts else nothing(0, num_heads, head_size)


def _attend(
    q: Floats, k: Floats, v: Floats, seen: npt.NDArray[np.bool_], scale: float, softcap: float | None
) -> Attended:
    """q [Q, H, D]; k, v [L, Hkv, D]; seen [Q, L], where each query sees an entry, and each entry is seen by one."""
    num_queries, num_heads, head_size = q.shape
    num_kv_heads = k.shape[1]
    x = q.reshape(num_queries, num_kv_heads, -1, head_size).transpose(1, 2, 0, 3)  # [Hkv, G, Q, D]
    keys, values = k.transpose(1, 2, 0)[:, None], v.transpose(1, 0, 2)[:, None]  # [Hkv, 1, D, L], [Hkv, 1, L, D]
    scores = x @ keys * scale
    reach = np.where(seen, np.abs(x) @ np.abs(keys) * abs(scale), 0).max(-1)
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    scores = np.where(seen, scores, -np.inf)
    most = scores.max(-1, keepdims=True)
    weights = np.exp(scores - most)
    total = weights.sum(-1, keepdims=True)
    p = weights / total

    def flat(y: Floats) -> Floats:
        """[Hkv, G, Q, ...] -> [Q, H, ...]"""
        y = np.moveaxis(y, 2, 0)
        return np.ascontiguousarray(y.reshape(num_queries, num_heads, *y.shape[3:]))

    num_keys = np.broadcast_to(seen.sum(-1, keepdims=True), (num_queries, num_heads))
    size = np.broadcast_to(seen.astype(np.float64), p.shape) @ np.abs(values)
    power = (p * p @ (values * values).mean(-1, keepdims=True))[..., 0]
    return Attended(
        flat(p @ values), flat((most + np.log(total))[..., 0]), flat(p @ np.abs(values)), flat(size), flat(power),
        flat(reach), flat(total[..., 0]), num_keys.astype(np.float64),
    )  # fmt: skip


def merge(o1: Floats, lse1: Floats, o2: Floats, lse2: Floats) -> tuple[Floats, Floats, Floats]:
    """Attention over two disjoint sets of keys from that over each: o [T, H, D], lse [T, H], sum of w |o| [T, H, D].

    A side with lse -inf saw nothing, and its o may be NaN.
    """
    most = np.maximum(lse1, lse2)
    base = np.where(np.isfinite(most), most, 0)
    e1, e2 = np.exp(lse1 - base), np.exp(lse2 - base)
    total = e1 + e2
    o, spread = np.zeros_like(o1), np.zeros_like(o1)
    for side, e in ((o1, e1), (o2, e2)):
        weight = np.divide(e, total, out=np.zeros_like(e), where=total > 0)[..., None]
        o += np.where(weight > 0, weight * side, 0)
        spread += np.where(weight > 0, weight * np.abs(side), 0)
    with np.errstate(divide="ignore"):
        return o, base + np.log(total), spread
