"""Attention over the paged cache: prefill, decode and verification in one call.

Legend: T tokens, S sequences, H query heads, Hkv key heads, G = H / Hkv, D head size, P pages, B pages in a block
table, L keys of a sequence, Q queries of a sequence.
"""

from __future__ import annotations

import math

import torch

from devices.kunlun.limits import HEAD_SIZES, MAX_CONTEXT, MAX_SEQS
from devices.kunlun.sim.vendor.launch import FLOATS, REFUSED, fits, launch, pages

_QUERIES = 128
"""Queries at a time: bounds the memory for scores."""


def prefill_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    *,
    is_causal: bool,
    is_prefix_cache: bool,
    block_table: torch.Tensor,
    context_qlen_lod_cpu: torch.Tensor,
    context_qlen_lod_xpu: torch.Tensor,
    context_kvlen_lod_cpu: torch.Tensor,
    context_kvlen_lod_xpu: torch.Tensor,
    softmax_lse: torch.Tensor | None = None,
    swa_left: int = -1,
    swa_right: int = -1,
    k_max: torch.Tensor,
    v_max: torch.Tensor,
    scale: float,
    softcap: float | None = None,
) -> int:
    """out [T, H, D] = causal attention of q over caches k, v [P, Hkv, page, D] int8.

    k_max, v_max [P, page, Hkv] are the magnitudes that codes of 127 stand for, in q's dtype. block_table [S, B] int32.
    Lods [S + 1] int32 are cumulated lengths of queries and of keys: those on the host say how long sequences can be,
    those on the device how long they are. swa_left: keys that a query sees before its own.
    softmax_lse [T, H] float32. Rows of `out` and `softmax_lse` that belong to no sequence stay as they are.
    """
    lods = context_qlen_lod_xpu, context_kvlen_lod_xpu
    on_host = context_qlen_lod_cpu, context_kvlen_lod_cpu
    arrays = fits(FLOATS, q) and fits(torch.int8, k, v) and fits(torch.int32, block_table, *lods, *on_host)
    if not (arrays and fits(q.dtype, out, k_max, v_max) and fits(torch.float32, softmax_lse)):
        return REFUSED
    most_queries, most_keys = (int(lod.diff().max()) if len(lod) > 1 else 0 for lod in on_host)
    if not (is_causal and is_prefix_cache and swa_right == -1) or most_keys > MAX_CONTEXT:
        return REFUSED
    if len(block_table) > MAX_SEQS or q.shape[2] not in HEAD_SIZES:
        return REFUSED

    def run(q: torch.Tensor, *rest: torch.Tensor) -> None:
        k, v, k_max, v_max, table, q_lod, kv_lod, out, *lse = rest
        starts, ends = q_lod.tolist(), kv_lod.tolist()
        for s, row in enumerate(table):
            tokens, num_keys = slice(starts[s], starts[s + 1]), ends[s + 1] - ends[s]
            num_queries = starts[s + 1] - starts[s]
            if num_queries > most_queries or num_keys > most_keys:
                raise RuntimeError(f"sequence {s} is longer on the device than lods on the host say")
            if num_queries:
                span = _Span(num_queries, num_keys, swa_left, k.shape[2])
                keys, values = (span.read(x, most, row) for x, most in ((k, k_max), (v, v_max)))
                o, part = _attend(q[tokens].float(), keys, values, span, scale, softcap)
                out[tokens] = o.to(out.dtype)
                for whole in lse:
                    whole[tokens] = part

    reads = [q, *(pages(pool, block_table) for pool in (k, v, k_max, v_max)), block_table, *lods]
    writes = [out] if softmax_lse is None else [out, softmax_lse]
    flops = 4 * q.numel() * most_keys
    return launch("prefill_attention", run, reads, writes, flops)


class _Span:
    """The keys that the last queries of a sequence see: from some key on, in pages."""

    def __init__(self, num_queries: int, num_keys: int, left: int, page: int) -> None:
        self.num_queries, self.num_keys, self.left, self.page = num_queries, num_keys, left, page
        self.first = 0 if left < 0 else max(0, num_keys - num_queries - left)

    def read(self, codes: torch.Tensor, most: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
        """[Hkv, L, D] float32."""
        seen = pages[self.first // self.page : -(-self.num_keys // self.page)]
        wide = _dequantised(codes[seen], most[seen]).float()
        flat = wide.permute(1, 0, 2, 3).flatten(1, 2)
        return flat[:, self.first % self.page :][:, : self.num_keys - self.first]

    def visible(self, begin: int, end: int) -> torch.Tensor:
        """Bool [Q, L]: which keys queries from `begin` to `end` see."""
        at = self.num_keys - self.num_queries + torch.arange(begin, end)[:, None]
        keys = torch.arange(self.first, self.num_keys)
        seen = keys <= at
        return seen if self.left < 0 else seen & (keys >= at - self.left)


def _dequantised(codes: torch.Tensor, most: torch.Tensor) -> torch.Tensor:
    """codes [n, Hkv, page, D] int8 times most [n, page, Hkv] / 127, in the dtype of `most`: what the cache holds."""
    wide = codes.float() * (most.float() / 127).transpose(1, 2)[..., None]
    limit = torch.finfo(most.dtype).max  # 127 times its 127th part may be rounded to infinity
    return wide.clamp_(-limit, limit).to(most.dtype)


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, span: _Span, scale: float, softcap: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [Q, H, D]; k, v [Hkv, L, D]; all float32 -> o [Q, H, D], lse [Q, H]."""
    num_queries, num_heads, size = q.shape
    grouped = q.view(num_queries, len(k), num_heads // len(k), size).permute(1, 2, 0, 3)
    parts = []
    for begin in range(0, num_queries, _QUERIES):
        some = grouped[:, :, begin : begin + _QUERIES]
        scores = (some @ k[:, None].transpose(2, 3)).mul_(scale)
        if softcap is not None:
            scores = scores.div_(softcap).tanh_().mul_(softcap)
        scores.masked_fill_(~span.visible(begin, begin + some.shape[2]), -math.inf)
        parts.append((torch.softmax(scores, -1) @ v[:, None], torch.logsumexp(scores, -1)))
    o, lse = (torch.cat(each, 2) for each in zip(*parts, strict=True))
    return o.permute(2, 0, 1, 3).flatten(1, 2), lse.permute(2, 0, 1).flatten(1, 2)
