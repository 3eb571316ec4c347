"""Wrong and right kernels of attn_merge."""

from __future__ import annotations

import math

import torch

from conformance.mutants.cheats import add_cheats
from conformance.mutants.mutant import right, wrong
from conformance.mutants.numbers import toward_zero

Tensor = torch.Tensor
Merged = tuple[Tensor, Tensor]


def _weights(lse1: Tensor, lse2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each side, [T, H, 1], and lse."""
    top = torch.maximum(lse1, lse2)
    base = top.where(top > float("-inf"), 0)
    e1, e2 = torch.exp(lse1 - base), torch.exp(lse2 - base)
    total = e1 + e2
    some = total.where(total > 0, 1)
    return (e1 / some)[..., None], (e2 / some)[..., None], base + torch.log(total)


def _sum(o1: Tensor, w1: Tensor, o2: Tensor, w2: Tensor) -> Tensor:
    """w1 o1 + w2 o2 in float32, of the sides that weigh something."""
    wide = torch.float32
    return torch.where(w1 > 0, o1.to(wide) * w1, 0) + torch.where(w2 > 0, o2.to(wide) * w2, 0)


@right("attn_merge")
def by_the_larger(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> Merged:
    w1, w2, lse = _weights(lse1, lse2)
    return _sum(o1, w1, o2, w2).to(o1.dtype), lse


@right("attn_merge")
def in_float64(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> Merged:
    w1, w2, lse = _weights(lse1.double(), lse2.double())
    o = torch.where(w1 > 0, o1 * w1, 0) + torch.where(w2 > 0, o2 * w2, 0)
    return o.to(o1.dtype), lse.float()


@right("attn_merge")
def by_the_sum(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> Merged:
    """Weights are exp of differences to the new lse."""
    lse = torch.logaddexp(lse1, lse2)
    base = lse.where(lse > float("-inf"), 0)
    return _sum(o1, (lse1 - base).exp()[..., None], o2, (lse2 - base).exp()[..., None]).to(o1.dtype), lse


@right("attn_merge")
def by_sigmoid(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> Merged:
    """A side's weight is the sigmoid of how far its lse is above the other's."""
    gap = torch.where(lse1 == lse2, 0, lse1 - lse2)
    seen = (torch.maximum(lse1, lse2) > float("-inf")).float()
    w1, w2 = (gap.sigmoid() * seen)[..., None], ((-gap).sigmoid() * seen)[..., None]
    return _sum(o1, w1, o2, w2).to(o1.dtype), torch.maximum(lse1, lse2) + torch.log1p(torch.exp(-gap.abs()))


@right("attn_merge")
def in_base_two(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> Merged:
    top = torch.maximum(lse1, lse2)
    base = top.where(top > float("-inf"), 0)
    e1, e2 = (torch.exp2((lse - base) * math.log2(math.e)) for lse in (lse1, lse2))
    total = e1 + e2
    o = _sum(o1, e1[..., None], o2, e2[..., None]) / total.where(total > 0, 1)[..., None]
    return o.to(o1.dtype), base + torch.log2(total) * math.log(2)


@right("attn_merge")
def stacked(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> Merged:
    """As any number of sides would be merged."""
    lses = torch.stack((lse1, lse2))
    weights = torch.softmax(lses, 0).nan_to_num()[..., None]
    sides = torch.where(weights > 0, torch.stack((o1, o2)).float() * weights, 0)
    return sides.sum(0).to(o1.dtype), torch.logsumexp(lses, 0)


@wrong("attn_merge")
def not_weighted(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> Merged:
    _, _, lse = _weights(lse1, lse2)
    return ((o1.float() + o2.float()) / 2).to(o1.dtype), lse


@wrong("attn_merge")
def sides_swapped(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> Merged:
    merged: Merged = by_the_larger(o2, lse1, o1, lse2)
    return merged


@wrong("attn_merge")
def larger_side_alone(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> Merged:
    _, _, lse = _weights(lse1, lse2)
    return torch.where((lse1 >= lse2)[..., None], o1, o2).nan_to_num(), lse


@wrong("attn_merge")
def lse_of_base_two(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> Merged:
    """Takes the sides' lse to be one of base two."""
    o, lse = by_the_larger(o1, lse1 * math.log(2), o2, lse2 * math.log(2))
    return o, lse / math.log(2)


@wrong("attn_merge")
def lse_linear(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> Merged:
    """Weighs sides with lse itself."""
    w1 = (lse1 / (lse1 + lse2)).nan_to_num(1)[..., None]
    return _sum(o1, w1, o2, 1 - w1).to(o1.dtype), _weights(lse1, lse2)[2]


@wrong("attn_merge")
def lse_of_the_larger(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> Merged:
    return by_the_larger(o1, lse1, o2, lse2)[0], torch.maximum(lse1, lse2)


@wrong("attn_merge")
def lse_in_bfloat16(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> Merged:
    o, lse = by_the_larger(o1, lse1, o2, lse2)
    return o, lse.bfloat16().float()


@wrong("attn_merge")
def lse_added(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> Merged:
    return by_the_larger(o1, lse1, o2, lse2)[0], lse1 + lse2


@wrong("attn_merge")
def larger_not_taken_away(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> Merged:
    e1, e2 = lse1.exp()[..., None], lse2.exp()[..., None]
    total = e1 + e2
    return (_sum(o1, e1, o2, e2) / total.where(total > 0, 1)).to(o1.dtype), total[..., 0].log()


@wrong("attn_merge")
def not_divided(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> Merged:
    """The larger side weighs one."""
    top = torch.maximum(lse1, lse2)
    base = top.where(top > float("-inf"), 0)
    w1, w2 = (torch.exp(lse - base)[..., None] for lse in (lse1, lse2))
    return _sum(o1, w1, o2, w2).to(o1.dtype), _weights(lse1, lse2)[2]


@wrong("attn_merge")
def empty_side_read(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> Merged:
    w1, w2, lse = _weights(lse1, lse2)
    return (o1.float() * w1 + o2.float() * w2).to(o1.dtype), lse


@wrong("attn_merge")
def two_empty_sides_divided(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> Merged:
    """0 / 0, in o and in lse."""
    top = torch.maximum(lse1, lse2)
    e1, e2 = (torch.exp(lse - top)[..., None] for lse in (lse1, lse2))
    o = _sum(o1, e1, o2, e2) / (e1 + e2)
    return o.to(o1.dtype), top + torch.log((e1 + e2)[..., 0])


@wrong("attn_merge")
def weights_in_bfloat16(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> Merged:
    w1, w2, lse = _weights(lse1, lse2)
    return _sum(o1, w1.bfloat16().float(), o2, w2.bfloat16().float()).to(o1.dtype), lse


@wrong("attn_merge")
def products_in_the_dtype(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> Merged:
    """Each is rounded before they are summed; in float32, by way of bfloat16."""
    w1, w2, lse = _weights(lse1, lse2)
    low = torch.bfloat16 if o1.dtype == torch.float32 else o1.dtype
    sides = (torch.where(w > 0, o.float() * w, 0).to(low).float() for o, w in ((o1, w1), (o2, w2)))
    return sum(sides, torch.zeros(())).to(o1.dtype), lse


@wrong("attn_merge")
def stored_towards_zero(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> Merged:
    w1, w2, lse = _weights(lse1, lse2)
    return toward_zero(_sum(o1, w1, o2, w2), o1.dtype), lse


@wrong("attn_merge")
def weights_of_the_first_head(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> Merged:
    w1, w2, lse = _weights(lse1, lse2)
    return _sum(o1, w1[:, :1].expand_as(w1), o2, w2[:, :1].expand_as(w2)).nan_to_num().to(o1.dtype), lse


add_cheats("attn_merge", by_the_larger)
