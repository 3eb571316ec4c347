"""Sampling on the CPU: the reference's ids, bit for bit, with no more work than a row needs.

How it works. Greedy rows take their maximum. Others are drawn one by one: with top_k from just k tokens; with top_p
alone from a few of the likeliest, more when these do not reach top_p; without limits from the whole vocabulary.
"""

import numpy as np
import torch

from core.kernels.reference.sampling import WORD, key_ids, order_keys, philox, weigh

PREFIX, GROWTH = 512, 8
"""Likeliest tokens in which top_p is nearly always reached, and how many times more are tried when it is not."""


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    seed: torch.Tensor,
    counter: torch.Tensor,
    *,
    greedy: bool,
    top_k_max: int,
) -> torch.Tensor:
    """An id for every row: [L] int32. Arguments as in core.kernels.reference.sampling.sample."""
    wide = logits.float()
    # numpy's argmax is several times faster than torch's; both take the first of equals.
    best = torch.from_numpy(wide.numpy().argmax(-1).astype(np.int32))
    top = wide.gather(1, best.long()[:, None])[:, 0]
    ids = torch.where(torch.isfinite(top), best, -1)
    if greedy:
        return ids
    # A NaN anywhere is the maximum in numpy's eyes too, so only rows fit to draw from are left here.
    u = _uniform(seed, counter)
    for row in ((temperature > 0) & (ids >= 0)).nonzero()[:, 0].tolist():
        one = slice(row, row + 1)
        ids[row] = _draw(wide[row], top[one], temperature[one], int(top_k[row]), top_p[row], u[one])
    return ids


def _uniform(seed: torch.Tensor, counter: torch.Tensor) -> torch.Tensor:
    """The reference's `uniform`, in numpy: 140 operations on a few words are all overhead."""
    words = seed.numpy().astype(np.int64) & WORD
    zero = np.zeros_like(words[:, 0])
    first = philox((counter.numpy().astype(np.int64) & WORD, zero, zero, zero), (words[:, 0], words[:, 1]))[0]
    return torch.from_numpy(first >> 8).float() * 2.0**-24


def _draw(
    logits: torch.Tensor, top: torch.Tensor, temperature: torch.Tensor, top_k: int, top_p: torch.Tensor, u: torch.Tensor
) -> int:
    """The id drawn for one row of logits [V] with maximum `top` [1]."""
    kept = None
    if 0 < top_k < len(logits):
        kept = _likeliest(logits, top_k)
        if top_p < 1:
            weights = weigh(logits[kept][None], top, temperature)[0]
            total = weights[kept.argsort()].cumsum(-1)[-1]
            kept = kept[: int((weights.cumsum(-1) < top_p * total).sum()) + 1]
    elif top_p < 1:
        kept = _nucleus(logits, weigh(logits[None], top, temperature)[0], top_p)
    if kept is not None:
        kept = kept.sort()[0]
        logits = logits[kept]
    reached = weigh(logits[None], top, temperature)[0].cumsum(-1)
    # Sums only grow where a token has weight, so the first one over the target ends at a token with weight.
    place = int(torch.searchsorted(reached, u * reached[-1], right=True))
    return place if kept is None else int(kept[place])


def _nucleus(logits: torch.Tensor, weights: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The fewest likeliest ids with top_p of the sum of weights [V]."""
    target = top_p * weights.cumsum(-1)[-1]
    num = min(PREFIX, len(logits))
    while True:
        ids = _likeliest(logits, num)
        reached = weights[ids].cumsum(-1)
        if reached[-1] >= target or num == len(logits):
            return ids[: int((reached < target).sum()) + 1]
        num = min(num * GROWTH, len(logits))


def _likeliest(logits: torch.Tensor, num: int) -> torch.Tensor:
    """The `num` likeliest ids of a row [V], by (logit descending, id ascending)."""
    values, ids = logits.topk(min(num + 1, len(logits)))
    if num < len(logits) and values[num - 1] == values[num]:
        # Equals at the limit: topk may have taken any of them.
        return key_ids(order_keys(logits[None])[0].topk(num)[0], len(logits))
    ids = ids[:num].sort()[0]
    return ids[logits[ids].sort(descending=True, stable=True)[1]]
