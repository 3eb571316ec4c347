"""Kernels whose result for a token has the same bits whatever else is in the batch, and however the prompt is cut.

How it works. What decides the bits of a sum is the order of its terms, and libraries choose that by the shapes they are
given. So every product here has the same shape each time: ROWS rows of a linear layer at once, QUERIES queries and KEYS
keys of attention at once, padded where there are fewer. Blocks of keys are joined in order by the usual rescaling,
where a block that a query does not see changes nothing, to the bit. The device runs on one thread then, because the
parts in which threads share an operation depend on its size too.

Slower than `devices.cpu.attention`, and meant as an oracle and for those who need equal text above all.

Legend: T tokens, H query heads, Hkv key heads, G = H / Hkv, D head size, B pages in a block table, N and K rows and
columns of a weight.
"""

from typing import Any

import torch
import torch.nn.functional as F

from core.kernels.reference.kv import Planes

ROWS = 32
QUERIES = 16
KEYS = 256

Plan = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def linear(x: torch.Tensor, handle: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [T, K] times the weight [N, K], transposed, plus bias [N]: [T, N]."""
    out = x.new_empty((x.shape[0], handle.shape[0]))
    for first in range(0, x.shape[0], ROWS):
        block = _padded(x[first : first + ROWS], ROWS)
        out[first : first + ROWS] = F.linear(block, handle, bias)[: x.shape[0] - first]
    return out


def _padded(x: torch.Tensor, size: int) -> torch.Tensor:
    """x with rows of zeros up to `size`."""
    return x if x.shape[0] == size else torch.cat([x, x.new_zeros((size - x.shape[0], *x.shape[1:]))])


def attn_plan(
    query_starts: torch.Tensor,
    kv_lens: torch.Tensor,
    block_table: torch.Tensor,
    *,
    num_tokens: int,
    page_tokens: int,
    window: int | None = None,
    host: Any = None,
) -> Plan:
    """Per token: the position of its query (-1 for padding), the first position it sees, the pages [T, B]."""
    tokens = torch.arange(num_tokens, dtype=torch.int32)
    seq = torch.searchsorted(query_starts[1:], tokens, right=True).clamp(max=len(kv_lens) - 1)
    position = kv_lens[seq] - query_starts[seq + 1] + tokens
    position = torch.where(tokens < query_starts[-1], position, -1)
    first = torch.zeros_like(position) if window is None else (position - window + 1).clamp(min=0)
    return position, first, block_table[seq]


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
    """o [T, H, D], and with `want_lse` also lse [T, H] float32. Arguments as in core.kernels.reference.attention."""
    out, lse = torch.empty_like(q), torch.empty(q.shape[:2])
    for start in range(0, q.shape[0], QUERIES):
        part = slice(start, start + QUERIES)
        num = min(QUERIES, q.shape[0] - start)
        position = _padded(plan[0][part] + 1, QUERIES) - 1
        o, some_lse = _attend(
            _padded(q[part], QUERIES).float() * scale,
            planes,
            position,
            _padded(plan[1][part], QUERIES),
            _padded(plan[2][part], QUERIES),
            page_tokens,
            softcap,
        )
        out[part], lse[part] = o[:num], some_lse[:num]
    return (out, lse) if want_lse else out


def _attend(
    q: torch.Tensor,
    planes: Planes,
    position: torch.Tensor,
    first: torch.Tensor,
    pages: torch.Tensor,
    page_tokens: int,
    softcap: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [QUERIES, H, D] float32, scaled -> o like q, lse [QUERIES, H]."""
    num_heads, size = q.shape[1:]
    num_kv_heads = planes[0].shape[0]
    x = q.view(QUERIES, num_kv_heads, -1, size)
    top = torch.full((*x.shape[:3], 1), float("-inf"))
    total, acc = torch.zeros_like(top), torch.zeros_like(x)
    for block in range(0, int(position.max()) + 1, KEYS):
        keys = torch.arange(block, block + KEYS)
        seen = (keys <= position[:, None]) & (keys >= first[:, None])
        k, v = (_gather(plane, pages, keys, page_tokens, seen) for plane in planes)
        scores = x @ k.transpose(2, 3)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        scores = scores.masked_fill(~seen[:, None, None], float("-inf"))
        higher = torch.maximum(top, scores.amax(-1, keepdim=True))
        base = higher.masked_fill(higher == float("-inf"), 0)
        p, fade = torch.exp(scores - base), torch.exp(top - base)
        total, acc, top = total * fade + p.sum(-1, keepdim=True), acc * fade + p @ v, higher
    o = acc / total.masked_fill(total == 0, 1)
    return o.view(q.shape), (top + torch.log(total)).view(QUERIES, num_heads)


def _gather(
    plane: torch.Tensor, pages: torch.Tensor, keys: torch.Tensor, page_tokens: int, seen: torch.Tensor
) -> torch.Tensor:
    """Entries at positions `keys` of each query's sequence, [QUERIES, Hkv, KEYS, D] float32; 0 where not seen."""
    column = (keys // page_tokens).clamp(max=pages.shape[1] - 1)
    slots = pages[:, column].long() * page_tokens + keys % page_tokens
    rows = plane.view(plane.shape[0], -1, plane.shape[3])[:, slots]
    return rows.masked_fill_(~seen[None, :, :, None], 0).transpose(0, 1).float()
