"""Attention over the pages of `devices.cpu.kv`, by torch's scaled_dot_product_attention.

How it works. `devices.cpu.plan` says what to read. In a group, the query heads that share a key head are the query
rows of one call. Entries nobody may read may be NaN, and torch adds its mask: a block leaves them out by slicing, a
group sets them to 0 in what it gathered.

Legend: T tokens, N sequences in a group, L keys, Q queries in a block, H query heads, Hkv key and value heads,
G = H / Hkv, D head size. A and B are batch and heads of a call to torch: (N, Hkv) in a group, (Hkv, G) in a block.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from core.kernels.reference.kv import Planes
from devices.cpu.plan import Block, Group, Plan

SCORE_BYTES = 16 * 2**20
"""Float32 scores at a time, where torch's attention will not do (softcap, lse)."""

Result = tuple[torch.Tensor, torch.Tensor | None]


def attn_paged(
    q: torch.Tensor,
    planes: Planes,
    plan: Plan,
    *,
    scale: float,
    page_tokens: int,
    window: int | None = None,
    softcap: float | None = None,
    want_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """o [T, H, D], and with `want_lse` also lse [T, H] float32. Arguments as in core.kernels.reference.attention.

    Probabilities may be rounded to the dtype of q before they weigh values.
    """
    if softcap is None and not want_lse:
        attend: Callable[..., Result] = partial(_attend, scale=scale)
    else:
        attend = partial(_attend_in_steps, scale=scale, softcap=softcap)
    out = torch.empty_like(q)
    lse = torch.full(q.shape[:2], float("-inf"))
    if plan.num_real < q.shape[0]:
        out[plan.num_real :] = 0
    for group in plan.groups:
        out[group.tokens], part = _attend_group(q[group.tokens], planes, group, attend)
        if part is not None:
            lse[group.tokens] = part
    for block in plan.blocks:
        out[block.tokens], part = _attend_block(q[block.tokens], planes, block, attend)
        if part is not None:
            lse[block.tokens] = part
    return (out, lse) if want_lse else out


def _attend_group(q: torch.Tensor, planes: Planes, group: Group, attend: Callable[..., Result]) -> Result:
    """q [N, H, D] -> o [N, H, D], lse [N, H]."""
    num_seqs, num_heads, size = q.shape
    num_kv_heads = planes[0].shape[0]
    gathered = []
    for plane in planes:
        x = plane.index_select(1, group.pages_NW).view(num_kv_heads, -1, size)
        if len(group.hidden):
            x.index_fill_(1, group.hidden, 0)
        gathered.append(x.view(num_kv_heads, num_seqs, -1, size).transpose(0, 1))
    o, lse = attend(q.view(num_seqs, num_kv_heads, -1, size), gathered[0], gathered[1], group.mask_N11L, False)
    return o.reshape(q.shape), None if lse is None else lse.reshape(num_seqs, num_heads)


def _attend_block(q: torch.Tensor, planes: Planes, block: Block, attend: Callable[..., Result]) -> Result:
    """q [Q, H, D] -> o [Q, H, D], lse [Q, H]."""
    num_queries, num_heads, size = q.shape
    num_kv_heads = planes[0].shape[0]
    k, v = (x.index_select(1, block.pages_W).view(num_kv_heads, 1, -1, size)[:, :, block.keys] for x in planes)
    if num_queries == 1:
        o, lse = attend(q.view(num_kv_heads, 1, -1, size), k, v, None, False)
        return o.reshape(q.shape), None if lse is None else lse.reshape(1, num_heads)
    x = q.view(num_queries, num_kv_heads, -1, size).permute(1, 2, 0, 3)
    o, lse = attend(x, k, v, block.mask_QL, block.causal)
    return o.permute(2, 0, 1, 3).reshape(q.shape), None if lse is None else lse.flatten(0, 1).T


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, causal: bool, *, scale: float
) -> Result:
    """q [A, B, Q, D]; k, v [A, B or 1, L, D]; mask broadcasts to [A, B, Q, L], True where seen -> o like q, no lse."""
    k, v = (x.expand(-1, q.shape[1], -1, -1) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale), None


def _attend_in_steps(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    *,
    scale: float,
    softcap: float | None,
) -> Result:
    """As `_attend`, in float32, with softcap, and with lse [A, B, Q]; some queries at a time."""
    if causal:
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
    o, lse = torch.empty_like(q), torch.empty(q.shape[:3])
    k, v = k.float().transpose(2, 3), v.float()
    step = max(1, SCORE_BYTES // (4 * q.shape[0] * q.shape[1] * k.shape[3]))
    for first in range(0, q.shape[2], step):
        part = slice(first, first + step)
        scores = (q[:, :, part].float() @ k).mul_(scale)
        if softcap is not None:
            scores = scores.div_(softcap).tanh_().mul_(softcap)
        if mask is not None:
            # A mask of one row, as a group has, is the same for all queries.
            rows = mask if mask.shape[-2] == 1 else mask[part]
            scores.masked_fill_(~rows, float("-inf"))
        lse[:, :, part] = torch.logsumexp(scores, -1)
        o[:, :, part] = (torch.softmax(scores, -1) @ v).to(q.dtype)
    return o, lse
