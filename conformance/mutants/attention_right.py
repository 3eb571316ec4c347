"""Right kernels of attn_paged, each in another way than ours, and plans for them.

Legend as in `conformance.mutants.attention_plain`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from conformance.bounds import EXP_ERROR
from conformance.mutants.attention_plain import (
    PLAIN,
    Entries,
    Parts,
    Plan,
    Tensor,
    cap,
    limit,
    online,
    plain_plan,
    right_part,
    score,
    weigh,
)
from conformance.mutants.mutant import right
from core.kernels.reference.kv import Planes
from core.plugin.facts import Support


def _right(name: str, parts: Parts, support: Support | None = None) -> None:
    right("attn_paged", {"attn_plan": plain_plan}, support)(parts.kernel(name))


_right("plain", PLAIN)
_right("in_float64", replace(PLAIN, wide=torch.float64))


@right_part("weigh")
def tiles(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    return online(scores, v, 32)


@right_part("weigh")
def small_tiles_backwards(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    return online(scores, v, 8, backwards=True)


@right_part("weigh")
def split_and_merged(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    """Three parts of the keys, joined by their lse."""
    size = max(1, -(-scores.shape[2] // 3))
    parts = [weigh(s, x, dtype) for s, x in zip(torch.split(scores, size, -1), torch.split(v, size, 1), strict=True)]
    lses = torch.stack([lse for _, lse in parts])
    lse = lses.logsumexp(0)
    share = torch.exp(lses - lse.where(lse > float("-inf"), 0))
    return torch.stack([w[..., None] * o for w, (o, _) in zip(share, parts, strict=True)]).sum(0), lse


def _stored_weights(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda p: p.to(dtype).float()


@right_part("weigh")
def weights_in_the_dtype(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    return online(scores, v, 64, round_p=_stored_weights(dtype))


@right_part("weigh")
def sum_of_weights_in_the_dtype(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    """The sum that divides is that of the rounded weights."""
    top = scores.amax(-1, keepdim=True)
    p = torch.exp(scores - top).to(dtype).float()
    return p @ v / p.sum(-1, keepdim=True), weigh(scores, v, dtype)[1]


@right_part("weigh")
def divided_first(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    """Weights that sum to one are rounded, and multiplied in the dtype."""
    p = scores.softmax(-1).to(dtype)
    return (p @ v.to(dtype)).float(), scores.logsumexp(-1)


def _exp_by_two(x: Tensor) -> Tensor:
    return torch.exp2(x * math.log2(math.e))


@right_part("weigh")
def in_base_two(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    return online(scores, v, 128, exp=_exp_by_two, round_p=_stored_weights(dtype))


def _rough_exp(x: Tensor) -> Tensor:
    """Off by as much as a fast approximation may be, now up, now down."""
    signs = torch.where(torch.arange(x.shape[-1]) % 3 > 0, 1.0, -1.0)
    return x.exp() * (1 + 0.9 * EXP_ERROR * signs)


@right_part("weigh")
def rough_exp(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    return online(scores, v, 64, exp=_rough_exp)


@right_part("limit")
def finite_mask(scores: Tensor, softcap: float | None, visible: Tensor) -> Tensor:
    """The least number stands for minus infinity: each query sees something."""
    return cap(scores, softcap).masked_fill(~visible, torch.finfo(scores.dtype).min)


@right_part("limit")
def softcap_by_exp(scores: Tensor, softcap: float | None, visible: Tensor) -> Tensor:
    """tanh is 1 - 2 / (exp(2 x) + 1)."""
    if softcap is None:
        return limit(scores, None, visible)
    return limit(softcap - 2 * softcap / (torch.exp(scores * (2 / softcap)) + 1), None, visible)


@right_part("score")
def scaled_before(q: Tensor, k: Tensor, scale: float) -> Tensor:
    return score(q * scale, k, 1.0)


@right_part("score")
def halves_of_the_head(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """The sum over D in two parts."""
    half = q.shape[2] // 2
    return (q[..., :half] @ k[..., :half].mT + q[..., half:] @ k[..., half:].mT) * scale


@right("attn_paged", {"attn_plan": plain_plan})
def torch_attention(q: Tensor, planes: Planes, plan: Plan, **fixed: Any) -> Tensor | Entries:
    """torch's own, in the dtype; it knows no softcap and gives no lse."""
    if fixed["softcap"] is not None or fixed["want_lse"]:
        return PLAIN.attend(q, planes, plan, **fixed)
    o = torch.zeros_like(q, memory_format=torch.contiguous_format)
    for s, (begin, end, length) in enumerate(torch.stack(plan[:3], 1).tolist()):
        k, v = PLAIN.read(planes, plan.table[s], length, fixed["page_tokens"])
        at = torch.arange(length - (end - begin), length)[:, None]
        visible = PLAIN.seen(at, torch.arange(length)[None], fixed["window"])
        k, v = (PLAIN.share(PLAIN.clean(x, visible.any(0)), q.shape[1]).transpose(0, 1)[None] for x in (k, v))
        some = q[begin:end].transpose(0, 1)[None]
        if end > begin:
            got = F.scaled_dot_product_attention(some, k, v, attn_mask=visible, scale=fixed["scale"])
            o[begin:end] = got[0].transpose(0, 1)
    return o


@right("attn_paged", {"attn_plan": plain_plan}, Support(batch_invariant=True))
def token_by_token(q: Tensor, planes: Planes, plan: Plan, **fixed: Any) -> Tensor | Entries:
    """Each in a step of its own, so that nothing but its sequence counts."""
    want_lse = fixed.pop("want_lse")
    o, lse = torch.zeros_like(q, memory_format=torch.contiguous_format), torch.full(q.shape[:2], float("-inf"))
    for s, (begin, end, length) in enumerate(torch.stack(plan[:3], 1).tolist()):
        for token in range(begin, end):
            alone = torch.tensor([0, 1, length - (end - 1 - token)])
            step = Plan(alone[:1], alone[1:2], alone[2:], plan.table[s : s + 1], alone[1])
            got = PLAIN.attend(q[token : token + 1], planes, step, **fixed, want_lse=True)
            o[token], lse[token] = got[0][0], got[1][0]
    return (o, lse) if want_lse else o
