"""From logits to token ids.

How it works. Every row is on its own: its ids depend on its logits, its parameters, its seed and its counter, not
on what else is in the batch, nor on `top_k_max`. Tokens are ranked by unique integer keys made of logit and id,
so ties are exact. The draw goes through the vocabulary in order, over the tokens kept. Totals are the last entry
of a cumulative sum: unlike a sum in blocks, its bits do not depend on zeros in between.

Legend: L logit rows, V vocabulary, H ids of history, S sequences, K drafts.
"""

from typing import Any

import torch

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF
_ID_BITS = 32

LOGIT_BYTES = 4 * 2**20
"""Logits in float32 that are looked at together: what is made of them takes up to ten times as much."""


def philox(counter: tuple[Any, ...], key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Philox4x32-10: four random words from a counter of four words and a key of two.

    Words are in [0, 2^32): Python's integers, or arrays of int64, be they torch's or numpy's.

    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", doi 10.1145/2063384.2063405.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & WORD, (k1 + _WEYL[1]) & WORD
    return c0, c1, c2, c3


def _multiply(x: Any, by: int) -> tuple[Any, Any]:
    """High and low word of a product of 32-bit words; in halves of x, as 64 signed bits would overflow."""
    low = (x & 0xFFFF) * by
    high = (x >> 16) * by + (low >> 16)
    return high >> 16, ((high & 0xFFFF) << 16) | (low & 0xFFFF)


def uniform(seed: torch.Tensor, counter: torch.Tensor) -> torch.Tensor:
    """One float32 in [0, 1 - 2^-24] for every row; seed [L, 2] int32, counter [L] int32."""
    words = seed.long() & WORD
    zero = torch.zeros_like(words[:, 0])
    first = philox((counter.long() & WORD, zero, zero, zero), (words[:, 0], words[:, 1]))[0]
    u: torch.Tensor = (first >> 8).float() * 2.0**-24
    return u


def order_keys(logits: torch.Tensor) -> torch.Tensor:
    """int64 keys [L, V], all different in a row: greater where the logit is greater, or as great and the id lower.

    Logits are float32 and not NaN. The key's low 32 bits are V - 1 - id.
    """
    size = logits.shape[-1]
    # -0.0 is made equal to 0.0; adding 0.0 would do, but compilers leave that out.
    bits = torch.where(logits == 0, 0.0, logits).view(torch.int32)
    # Floats order like sign and magnitude: flip the magnitude of the negative ones.
    rank = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    return (rank << _ID_BITS) + torch.arange(size - 1, -1, -1, device=logits.device)


def key_ids(keys: torch.Tensor, size: int) -> torch.Tensor:
    """The ids, int64, in keys made of rows of `size` logits."""
    return size - 1 - (keys & WORD)


def weigh(logits: torch.Tensor, top: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Probabilities, up to their sum: exp((logits - top) / temperature), float32; rows with temperature 0 undefined."""
    return torch.exp((logits - top[:, None]) / temperature[:, None])


def draw(
    logits: torch.Tensor,
    top: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    u: torch.Tensor,
    *,
    top_k_max: int,
    total: torch.Tensor | None = None,
) -> torch.Tensor:
    """An id [L] int64 for every row of float32 logits [L, V] with maximum top [L], by the uniform u [L].

    total [L, 1] is the weight of which top_p is a part; None: of the tokens that top_k leaves. Others as in `sample`.
    """
    weights = weigh(logits, top, temperature)
    weights = weights.where(_keep(logits, weights, top_k, top_p, top_k_max, total), 0)
    reached = weights.cumsum(-1)
    ids = torch.arange(weights.shape[-1], device=weights.device)
    # The first token that has weight and takes the sum over u of it. Where sums are made in parallel, they may also
    # grow at a token without weight, or stay below u of themselves.
    over = (weights > 0) & (reached > u[:, None] * reached[:, -1:])
    last = torch.where(weights > 0, ids, 0).amax(-1)
    return torch.minimum(torch.where(over, ids, weights.shape[-1]).amin(-1), last)


def _keep(
    logits: torch.Tensor,
    weights: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    top_k_max: int,
    total: torch.Tensor | None,
) -> torch.Tensor:
    """Which tokens may be drawn, bool [L, V]: the k likeliest; of these, the fewest likeliest with top_p of total."""
    size = logits.shape[-1]
    keys = order_keys(logits)
    ranked = keys.topk(min(top_k_max, size), -1)[0] if top_k_max else keys.sort(-1, descending=True)[0]
    limited = (top_k > 0) & (top_k < size)
    num_kept = torch.where(limited, top_k, ranked.shape[1]).clamp(max=ranked.shape[1]).long()
    keep = ~limited[:, None] | (keys >= ranked.gather(1, num_kept[:, None] - 1))

    if total is None:
        total = weights.where(keep, 0).cumsum(-1)[:, -1:]
    missing = weights.gather(1, key_ids(ranked, size)).cumsum(-1) < top_p[:, None] * total
    num_likeliest = torch.minimum(missing.sum(-1) + 1, num_kept)
    # top_p 1 keeps everything; in float32, the sum may be reached before the last token.
    return keep & ((top_p >= 1)[:, None] | (keys >= ranked.gather(1, num_likeliest[:, None] - 1)))


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
    """An id for every row: [L] int32.

    logits [L, V]; temperature [L] float32, 0 means greedy; top_k [L] int32, 0 and -1 mean all; top_p [L] float32
    in (0, 1]; seed [L, 2] int32, two halves of 64 bits; counter [L] int32, different for every draw of a seed.

    greedy      every row is greedy
    top_k_max   every row that limits, be it by top_p alone, has 0 < top_k <= top_k_max; or 0: no such promise, and rows
                are sorted whole

    Greedy takes the likeliest token, of equals the lowest id. Else: temperature, then top_k, then top_p on the
    renormalised rest, ranking by (logit descending, id ascending); then one draw. A row without a finite maximum
    (NaN, infinity, everything masked) gives -1.
    """
    top, best = logits.max(-1)
    if not greedy:
        u = uniform(seed, counter)
        drawn = draw(logits.float(), top.float(), temperature, top_k, top_p, u, top_k_max=top_k_max)
        best = torch.where(temperature > 0, drawn, best)
    return torch.where(torch.isfinite(top), best, -1).int()


def penalize(
    logits: torch.Tensor,
    history: torch.Tensor,
    num_prompt: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> torch.Tensor:
    """Logits [L, V] in float32, lowered for tokens that were there before.

    history [L, H] int32 holds the prompt, then the output, then -1; num_prompt [L] int32. repetition [L] divides
    positive logits and multiplies others, for tokens of prompt or output; frequency [L] is subtracted for every
    time, presence [L] once, for tokens of the output.
    Source: Keskar et al. 2019, arXiv:1909.05858 (repetition, as in transformers); OpenAI's API reference (others).
    """
    size = logits.shape[-1]
    ids = torch.where(history >= 0, history, size).long()
    is_output = torch.arange(history.shape[1], device=history.device) >= num_prompt[:, None]
    empty = torch.zeros((logits.shape[0], size + 1), device=logits.device)
    seen = empty.scatter_add(1, ids, torch.ones_like(ids, dtype=torch.float32))[:, :size]
    counts = empty.scatter_add(1, ids, is_output.float())[:, :size]
    wide = logits.float()
    repeated = torch.where(wide > 0, wide / repetition[:, None], wide * repetition[:, None])
    wide = torch.where(seen > 0, repeated, wide)
    return wide - frequency[:, None] * counts - presence[:, None] * (counts > 0)


def add_bias(logits: torch.Tensor, ids: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Logits [L, V] in float32, plus bias [L, B] float32 at ids [L, B] int32; -1 pads. No id stands twice in a row."""
    size = logits.shape[-1]
    places = torch.where(ids >= 0, ids, size).long()
    sums = torch.zeros((logits.shape[0], size + 1), device=logits.device).scatter_add(1, places, bias)
    return logits.float() + sums[:, :size]


def min_p(logits: torch.Tensor, temperature: torch.Tensor, least: torch.Tensor) -> torch.Tensor:
    """Logits [L, V] in float32, -inf for tokens that at temperature [L] are less than least [L] times as likely as the
    likeliest one. Greedy rows (temperature 0) and rows with least 0 stay as they are.
    """
    wide = logits.float()
    # exp((x - top) / t) < least, without the exponentials.
    floor = wide.amax(-1) + temperature * torch.log(least)
    floor = torch.where((temperature > 0) & (least > 0), floor, float("-inf"))
    return wide.masked_fill(wide < floor[:, None], float("-inf"))


def apply_mask(logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Logits [L, V], -inf where the bit is 0: bit i of word w of mask [L, ceil(V / 32)] int32 is for id 32 w + i."""
    ids = torch.arange(logits.shape[-1], device=logits.device)
    allowed = (mask[:, ids // 32] >> (ids % 32)) & 1
    return logits.masked_fill(allowed == 0, float("-inf"))


def logprobs_topk(
    logits: torch.Tensor, ids: torch.Tensor, *, k: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of ids [L]: logprob [L] float32 and rank [L] int32; of the k likeliest: logprobs [L, k], ids [L, k] int32.

    An id -1, where nothing could be drawn, stands for 0. rank is 1 + the number of tokens with a greater logit. The
    likeliest are in order, equals by id.
    """
    step = max(1, LOGIT_BYTES // (4 * logits.shape[1]))
    starts = range(0, max(1, len(logits)), step)
    parts = [_logprobs_topk(logits[first : first + step], ids[first : first + step], k) for first in starts]
    logprob, rank, top_logprobs, top_ids = (torch.cat(column) for column in zip(*parts, strict=True))
    return logprob, rank, top_logprobs, top_ids


def _logprobs_topk(logits: torch.Tensor, ids: torch.Tensor, k: int) -> tuple[torch.Tensor, ...]:
    """As `logprobs_topk`, for a few rows."""
    wide = logits.float()
    logprobs = torch.log_softmax(wide, -1)
    chosen = ids.clamp(min=0).long()[:, None]
    rank = (wide > wide.gather(1, chosen)).sum(-1) + 1
    top_ids = key_ids(order_keys(wide).topk(k, -1)[0], wide.shape[-1])
    return logprobs.gather(1, chosen)[:, 0], rank.int(), logprobs.gather(1, top_ids), top_ids.int()


def spec_verify(
    draft_ids: torch.Tensor, sampled_ids: torch.Tensor, rows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """How many drafts [S, K] (-1 pads) agree with the ids sampled [S, K + 1], from the left: [S] int32.

    And which of rows [S, K + 1] int32, those of the sampled ids, is that of the first that does not: [S].
    """
    padded = torch.cat((draft_ids, torch.full_like(sampled_ids[:, :1], -1)), -1)  # as wide as what was sampled
    agree = (padded == sampled_ids) & (padded >= 0)
    num = ((~agree).cumsum(-1) == 0).sum(-1)
    return num.int(), rows.gather(1, num[:, None])[:, 0]
