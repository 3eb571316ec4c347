"""Attention over the pages of `devices.kunlun.kv`, by the vendor's op: prefill, decode and verification in one call.

How it works. The op wants cumulated lengths ("lods") on the device, which say where sequences are, and on the host,
which size its work. A plan has both. Where the host does not know lengths, as in a graph that is replayed for others,
the host's are the largest that the shapes allow.

Legend: T tokens, S sequences, H query heads, D head size, B pages in a block table.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple

import torch

from core.kernels.reference.kv import Planes
from devices.kunlun.ops import Ops


class Plan(NamedTuple):
    """Lods [S + 1] int32 of queries and keys; block_table [S, B] int32; whether every token belongs to a sequence."""

    q_lod_host: torch.Tensor
    kv_lod_host: torch.Tensor
    q_lod: torch.Tensor
    kv_lod: torch.Tensor
    block_table: torch.Tensor
    full: bool


class Attention:
    """Kernels of the rows of these names."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops

    def attn_plan(
        self,
        query_starts: torch.Tensor,
        kv_lens: torch.Tensor,
        block_table: torch.Tensor,
        *,
        num_tokens: int,
        page_tokens: int,
        window: int | None = None,
        host: Any = None,
    ) -> Plan:
        """Arguments as in core.kernels.reference.attention. Nothing is waited for."""
        num_seqs, width = block_table.shape
        exact = host is not None and host.exact
        query_lens = host.query_lens.tolist() if exact else [num_tokens] * num_seqs
        lens = host.kv_lens.tolist() if exact else [width * page_tokens] * num_seqs
        # A host tensor is read when the op is launched, a device tensor when it runs.
        kv_lod = torch.cat([kv_lens.new_zeros(1), kv_lens.cumsum(0, dtype=torch.int32)])
        return Plan(
            _lod(query_lens),
            _lod(lens),
            query_starts.contiguous(),
            kv_lod,
            block_table.contiguous(),
            exact and sum(query_lens) == num_tokens,
        )

    def attn_paged(
        self,
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
        """o [T, H, D], and with `want_lse` also lse [T, H] float32. Padding tokens have o 0 and lse -inf."""
        q = q.contiguous()
        out = torch.empty_like(q) if plan.full else torch.zeros_like(q)
        lse = q.new_full(q.shape[:2], float("-inf"), dtype=torch.float32) if want_lse else None
        k, v, k_max, v_max = planes
        self._ops.prefill_attention(
            q,
            k,
            v,
            out,
            is_causal=True,
            is_prefix_cache=True,
            block_table=plan.block_table,
            context_qlen_lod_cpu=plan.q_lod_host,
            context_qlen_lod_xpu=plan.q_lod,
            context_kvlen_lod_cpu=plan.kv_lod_host,
            context_kvlen_lod_xpu=plan.kv_lod,
            softmax_lse=lse,
            swa_left=-1 if window is None else window - 1,
            k_max=k_max,
            v_max=v_max,
            scale=scale,
            softcap=softcap,
        )
        return out if lse is None else (out, lse)


def _lod(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
