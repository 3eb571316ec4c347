"""Sampling on the CPU: the reference's ids, bit for bit, with no more work than rows need.

How it works. Greedy rows take their maximum. Rows with limits are cut down to a few candidates in order of id, and
drawn by the reference as if these were the vocabulary: with top_k, some more than the greatest top_k; with top_p
alone, PREFIX. topk takes any of equal logits, so only candidates above the last one are sure. A row whose limit is
not met by sure candidates is drawn whole.
"""

from typing import NamedTuple

import numpy as np
import torch

from core.kernels.reference.sampling import LOGIT_BYTES, WORD, draw, philox, weigh

PREFIX = 512
"""Likeliest tokens in which top_p is nearly always reached; finding so many costs a tenth of ranking all."""

MARGIN = 64
"""Candidates beyond top_k: logits that a model computes in bfloat16 are often equal to a few others."""


class _Rows(NamedTuple):
    """Rows to draw: logits [L, V] float32, their maximum [L], parameters [L], and a uniform number [L]."""

    logits: torch.Tensor
    top: torch.Tensor
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    u: torch.Tensor

    def take(self, rows: torch.Tensor) -> "_Rows":
        return self if len(rows) == len(self.u) else _Rows(*(x[rows] for x in self))


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
    step = max(1, LOGIT_BYTES // (4 * logits.shape[1]))
    rows = (logits, temperature, top_k, top_p, seed, counter)
    parts = [slice(first, first + step) for first in range(0, max(1, len(logits)), step)]
    return torch.cat([_sample(*(x[part] for x in rows), greedy=greedy) for part in parts])


def _sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    seed: torch.Tensor,
    counter: torch.Tensor,
    *,
    greedy: bool,
) -> torch.Tensor:
    """As `sample`, for a few rows."""
    wide = logits.float()
    # numpy's argmax is several times faster than torch's; both take the first of equals, and a NaN before any.
    ids = torch.from_numpy(wide.numpy().argmax(-1))
    top = wide.gather(1, ids[:, None])[:, 0]
    fit = torch.isfinite(top)
    if not greedy:
        every = _Rows(wide, top, temperature, top_k, top_p, _uniform(seed, counter))
        drawn = fit & (temperature > 0)
        by_k = (top_k > 0) & (top_k < wide.shape[1])
        by_p = ~by_k & (top_p < 1)
        for chosen, draw_rows in ((by_k, _draw_top_k), (by_p, _draw_top_p), (~by_k & ~by_p, _draw_any)):
            rows = (drawn & chosen).nonzero()[:, 0]
            if len(rows):
                ids[rows] = draw_rows(every.take(rows))
    return torch.where(fit, ids, -1).int()


def _uniform(seed: torch.Tensor, counter: torch.Tensor) -> torch.Tensor:
    """The reference's `uniform`, in numpy: a few hundred operations on a few words are all overhead."""
    words = seed.numpy().astype(np.int64) & WORD
    zero = np.zeros_like(words[:, 0])
    first = philox((counter.numpy().astype(np.int64) & WORD, zero, zero, zero), (words[:, 0], words[:, 1]))[0]
    return torch.from_numpy(first >> 8).float() * 2.0**-24


def _draw_any(rows: _Rows) -> torch.Tensor:
    """Ids [L] of rows without limits."""
    reached = weigh(rows.logits, rows.top, rows.temperature).cumsum(-1)
    # Sums only grow where a token has weight, so the first one over the target ends at a token with weight.
    return torch.searchsorted(reached, rows.u[:, None] * reached[:, -1:], right=True)[:, 0]


def _draw_top_k(rows: _Rows) -> torch.Tensor:
    """Ids [L] of rows with top_k."""
    values, candidates = rows.logits.topk(min(int(rows.top_k.max()) + MARGIN, rows.logits.shape[1]))
    num_sure = (values[:, :-1] > values[:, -1:]).sum(-1)
    return _draw_among(rows, candidates[:, :-1], num_sure >= rows.top_k, None)


def _draw_top_p(rows: _Rows) -> torch.Tensor:
    """Ids [L] of rows with top_p alone."""
    if rows.logits.shape[1] <= PREFIX:
        return draw(*rows, top_k_max=0)
    total = weigh(rows.logits, rows.top, rows.temperature).cumsum(-1)[:, -1:]
    values, candidates = rows.logits.topk(PREFIX + 1)
    values, limit = values[:, :-1], values[:, -1:]
    sure = weigh(values, rows.top, rows.temperature).where(values > limit, 0).cumsum(-1)[:, -1]
    return _draw_among(rows, candidates[:, :-1], sure >= rows.top_p * total[:, 0], total)


def _draw_among(rows: _Rows, candidates: torch.Tensor, sure: torch.Tensor, total: torch.Tensor | None) -> torch.Tensor:
    """Ids [L], from candidates [L, C] where these are `sure` [L] to hold all that may be drawn."""
    candidates = candidates.sort(-1)[0]
    few = rows._replace(logits=rows.logits.gather(1, candidates))
    ids = candidates.gather(1, draw(*few, top_k_max=0, total=total)[:, None])[:, 0]
    unsure = (~sure).nonzero()[:, 0]
    if len(unsure):
        ids[unsure] = draw(*rows.take(unsure), top_k_max=0)
    return ids
