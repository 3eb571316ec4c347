"""Attention and the KV pool by the library's kernels: prefill, decode and verification in one.

How it works. `attention.h` has the order of the pool and the arithmetic. A plan is what the kernel reads of the step,
copied, and how many tiles of 16 queries come before each sequence. A token's bits depend on its sequence alone: keys
are joined in blocks that begin at multiples of 64, and what a row does not see changes nothing of it.

Legend: T tokens, S sequences, B pages in a block table, P pages in the pool, H query heads, Hkv key heads, D head size.
"""

from typing import Any, NamedTuple

import torch

from core.kernels.dtypes import TORCH_DTYPES
from core.kernels.reference.kv import KVLayout, Plane, Planes
from devices.cpu.native import calls, jobs, library

LANES = 16
HEAD_SIZES = frozenset(range(16, 257, 16))
PAGE_SIZES = frozenset(range(16, 257, 16))


class Plan(NamedTuple):
    """Of one step and KV group, all int32: query_starts [S + 1], kv_lens [S], tables [S, B], tile_starts [S + 1]."""

    query_starts: torch.Tensor
    kv_lens: torch.Tensor
    block_table: torch.Tensor
    tile_starts: torch.Tensor


def kv_layout(*, num_kv_heads: int, head_size: int, page_tokens: int, dtype: str) -> KVLayout:
    """Keys [Hkv, P, page / 16, D / 2, 16, 2] and values [Hkv, P, page / 2, D, 2] in `dtype`."""
    keys = Plane(dtype, (num_kv_heads, 0, page_tokens // LANES, head_size // 2, LANES, 2), 1)
    values = Plane(dtype, (num_kv_heads, 0, page_tokens // 2, head_size, 2), 1)
    num_bytes = 2 * num_kv_heads * page_tokens * head_size * TORCH_DTYPES[dtype].itemsize
    return KVLayout((keys, values), num_bytes, f"kv-tiles-{dtype}")


def kv_gather(planes: Planes, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """k and v of `pages` (int32, any shape): each [*pages.shape, page, H, D]."""
    keys, values = (plane.index_select(1, pages.flatten()) for plane in planes)
    shape = (*pages.shape, keys.shape[2] * LANES, keys.shape[0], values.shape[3])
    return keys.permute(1, 2, 4, 0, 3, 5).reshape(shape), values.permute(1, 2, 4, 0, 3).reshape(shape)


class AttentionKernels:
    """`attn_plan`, `kv_write` and `attn_paged` of one variant."""

    def __init__(self, variant: str) -> None:
        kernels = library.load(variant)
        self._plan, self._attention, self._write = kernels.attention_plan, kernels.attention, kernels.kv_write

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
        """What the kernel reads of a step. Arguments as in core.kernels.reference.attention."""
        table = block_table if block_table.stride(1) == 1 else block_table.contiguous()
        query_starts, kv_lens = query_starts.contiguous(), kv_lens.contiguous()
        made = Plan(*(calls.empty(x.shape, torch.int32) for x in (query_starts, kv_lens, table, query_starts)))
        calls.call(
            self._plan,
            jobs.AttentionPlan(
                query_starts.data_ptr(),
                kv_lens.data_ptr(),
                table.data_ptr(),
                *table.shape,
                table.stride(0),
                *(x.data_ptr() for x in made),
            ),
        )
        return made

    def kv_write(
        self, k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
    ) -> Planes:
        """Write k and v [T, H, D] in place at `slots` [T] int32; slot -1 is skipped."""
        k, v = (x if x.stride(2) == 1 else x.contiguous() for x in (k, v))
        calls.call(
            self._write,
            jobs.KVWrite(
                k.data_ptr(),
                v.data_ptr(),
                k.stride()[:2],
                v.stride()[:2],
                *k.shape,
                planes[0].data_ptr(),
                planes[1].data_ptr(),
                planes[0].shape[1],
                page_tokens,
                slots.contiguous().data_ptr(),
            ),
        )
        return planes

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
        """o [T, H, D], and with `want_lse` also lse [T, H] float32. Arguments as in core.kernels.reference.attention.

        Probabilities may be rounded to bfloat16 before they weigh values.
        """
        q = q if q.stride(2) == 1 else q.contiguous()
        out = calls.empty(q.shape, q.dtype)
        lse = calls.empty(q.shape[:2], torch.float32) if want_lse else None
        num_seqs, table_width = plan.block_table.shape
        calls.call(
            self._attention,
            jobs.Attention(
                q.data_ptr(),
                q.stride(0),
                q.stride(1),
                q.shape[0],
                q.shape[1],
                planes[0].shape[0],
                q.shape[2],
                planes[0].data_ptr(),
                planes[1].data_ptr(),
                planes[0].shape[1],
                page_tokens,
                plan.query_starts.data_ptr(),
                plan.kv_lens.data_ptr(),
                plan.tile_starts.data_ptr(),
                plan.block_table.data_ptr(),
                num_seqs,
                table_width,
                scale,
                softcap or 0,
                window or 0,
                out.data_ptr(),
                None if lse is None else lse.data_ptr(),
            ),
        )
        return out if lse is None else (out, lse)
