"""Wrong kernels of attn_paged: what they make of scores, and how they store it.

Legend as in `conformance.mutants.attention_plain`.
"""

from __future__ import annotations

import math

import torch

from conformance.mutants.attention_plain import Entries, Tensor, online, pad, weigh, wrong_part
from conformance.mutants.numbers import toward_zero

_TILE = 16

# Weights


@wrong_part("weigh")
def largest_score_not_taken_away(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    p = scores.exp()
    total = p.sum(-1, keepdim=True)
    return p @ v / total, total.log()[..., 0]


@wrong_part("weigh")
def largest_score_of_all_rows(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    """A tile's, for each of its queries."""
    p = torch.exp(scores - scores.amax((1, 2), keepdim=True))
    total = p.sum(-1, keepdim=True)
    return p @ v / total, (scores.amax((1, 2), keepdim=True) + total.log())[..., 0]


@wrong_part("weigh")
def base_two(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    return weigh(scores * math.log(2), v, dtype)


@wrong_part("weigh")
def not_rescaled(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    return online(scores, v, _TILE, rescale=False)


@wrong_part("weigh")
def unseen_tiles_not_looked_after(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    return online(scores, v, _TILE, guard=False)


@wrong_part("weigh")
def halves_not_weighted(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    """Two halves of the keys count the same."""
    half = -(-scores.shape[2] // 2)
    parts = [weigh(scores[..., s], v[:, s], dtype) for s in (slice(half), slice(half, None)) if scores[..., s].numel()]
    some = sum((lse > float("-inf")).float() for _, lse in parts)
    o = sum(o for o, _ in parts) / torch.as_tensor(some)[..., None]
    return torch.as_tensor(o), weigh(scores, v, dtype)[1]


@wrong_part("weigh")
def halves_weighted_by_their_largest(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    """Not by the sums of their weights."""
    half = -(-scores.shape[2] // 2)
    parts = [scores[..., s] for s in (slice(half), slice(half, None)) if scores[..., s].numel()]
    share = torch.stack([part.amax(-1) for part in parts]).softmax(0)
    sides = (weigh(part, v[:, first : first + half], dtype)[0] for part, first in zip(parts, (0, half), strict=False))
    o = sum(w[..., None] * side for w, side in zip(share, sides, strict=True))
    return torch.as_tensor(o), weigh(scores, v, dtype)[1]


@wrong_part("weigh")
def sum_with_a_sink(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    """One is added to the sum of weights."""
    o, lse = weigh(scores, v, dtype)
    return o * torch.sigmoid(lse)[..., None], lse


@wrong_part("weigh")
def not_divided(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    o, lse = weigh(scores, v, dtype)
    return o * torch.exp(lse - scores.amax(-1))[..., None], lse


def _rounded_weights(scores: Tensor, v: Tensor, low: torch.dtype) -> Entries:
    return online(scores, v, _TILE, round_p=lambda p: p.to(low).float())


@wrong_part("weigh")
def weights_in_float8(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    return _rounded_weights(scores, v, torch.float8_e4m3fn)


@wrong_part("weigh")
def weights_in_bfloat16(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    """Whatever the dtype is."""
    return _rounded_weights(scores, v, torch.bfloat16)


@wrong_part("weigh")
def weights_cut_off(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    """Rounded towards zero."""
    return online(scores, v, _TILE, round_p=lambda p: toward_zero(p, dtype).float())


# Sums


@wrong_part("weigh")
def output_in_the_dtype(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    """While it is summed."""
    return online(scores, v, _TILE, round_o=lambda o: o.to(dtype).float())


@wrong_part("weigh")
def output_in_float16(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    return online(scores, v, _TILE, round_o=lambda o: o.half().float())


@wrong_part("weigh")
def output_in_bfloat16(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    return online(scores, v, _TILE, round_o=lambda o: o.bfloat16().float())


@wrong_part("weigh")
def total_in_the_dtype(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    """Weights are summed as they would be stored, a tile at a time."""
    o, lse = weigh(scores, v, dtype)
    total = torch.zeros(lse.shape, dtype=dtype)
    for tile in torch.split(torch.exp(scores - lse[..., None]).nan_to_num(), _TILE, -1):
        total += tile.sum(-1).to(dtype)
    return o / total.float()[..., None], lse + total.float().log()


@wrong_part("weigh")
def last_tile_lost(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    """Keys past the last multiple of a tile, where there is one."""
    whole = scores.shape[2] // _TILE * _TILE or scores.shape[2]
    return weigh(scores[..., :whole], v[:, :whole], dtype)


# Storing


@wrong_part("store")
def stored_towards_zero(o: Tensor, dtype: torch.dtype) -> Tensor:
    return toward_zero(o, dtype)


@wrong_part("store")
def stored_by_way_of_bfloat16(o: Tensor, dtype: torch.dtype) -> Tensor:
    return o.bfloat16().to(dtype)


@wrong_part("store")
def stored_by_way_of_float16(o: Tensor, dtype: torch.dtype) -> Tensor:
    return o.half().to(dtype)


@wrong_part("store")
def off_by_a_thousandth(o: Tensor, dtype: torch.dtype) -> Tensor:
    return (o * (1 + 2.0**-10)).to(dtype)


@wrong_part("store")
def last_queries_lost(o: Tensor, dtype: torch.dtype) -> Tensor:
    """Those past the last multiple of a tile, where there is one."""
    whole = len(o) // _TILE * _TILE or len(o)
    return torch.cat((o[:whole], torch.zeros_like(o[whole:]))).to(dtype)


@wrong_part("pad")
def padding_like_the_last_token(o: Tensor, lse: Tensor, num_real: int) -> None:
    pad(o, lse, num_real)
    o[num_real:] = o[max(0, num_real - 1)].nan_to_num(1) if num_real else 1


@wrong_part("pad")
def padding_divided_by_zero(o: Tensor, lse: Tensor, num_real: int) -> None:
    pad(o, lse, num_real)
    o[num_real:] /= 0


@wrong_part("pad")
def padding_not_written(o: Tensor, lse: Tensor, num_real: int) -> None:
    """What was in the memory stays."""
    pad(o, lse, num_real)
    o[num_real:] = 1e-3


# lse


@wrong_part("pad")
def lse_of_padding_zero(o: Tensor, lse: Tensor, num_real: int) -> None:
    pad(o, lse, num_real)
    lse[num_real:] = 0


def _other_lse(scores: Tensor, v: Tensor, dtype: torch.dtype, lse: Tensor) -> Entries:
    return weigh(scores, v, dtype)[0], lse


@wrong_part("weigh")
def lse_in_base_two(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    return _other_lse(scores, v, dtype, scores.logsumexp(-1) / math.log(2))


@wrong_part("weigh")
def lse_without_the_largest(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    return _other_lse(scores, v, dtype, scores.logsumexp(-1) - scores.amax(-1))


@wrong_part("weigh")
def lse_without_the_sum(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    return _other_lse(scores, v, dtype, scores.amax(-1))


@wrong_part("weigh")
def lse_in_bfloat16(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    return _other_lse(scores, v, dtype, scores.logsumexp(-1).bfloat16().float())


@wrong_part("weigh")
def lse_is_the_sum(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    """Its log is not taken."""
    return _other_lse(scores, v, dtype, torch.exp(scores.logsumexp(-1)))
