"""The KV pool on the CPU: each plane is [Hkv, P, page, D].

With heads first, the pages of a sequence, gathered by one index_select, are keys of one head after the other, as
torch's attention wants them. Legend as in core.kernels.reference.kv.
"""

import torch

from core.kernels.dtypes import TORCH_DTYPES
from core.kernels.reference.kv import KVLayout, Plane, Planes


def kv_layout(*, num_kv_heads: int, head_size: int, page_tokens: int, dtype: str) -> KVLayout:
    """Keys and values, each [Hkv, P, page, D] in `dtype`."""
    plane = Plane(dtype, (num_kv_heads, 0, page_tokens, head_size), 1)
    num_bytes = 2 * num_kv_heads * page_tokens * head_size * TORCH_DTYPES[dtype].itemsize
    return KVLayout((plane, plane), num_bytes, f"kv-HND-{dtype}")


def kv_write(k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int) -> Planes:
    """Write k and v [T, H, D] in place at `slots` [T] int32; slot -1 goes to the null page."""
    rows = slots.clamp(min=0).long()
    for plane, x in zip(planes, (k, v), strict=True):
        plane.view(plane.shape[0], -1, plane.shape[3]).index_copy_(1, rows, x.transpose(0, 1))
    return planes


def kv_gather(planes: Planes, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """k and v of `pages` (int32, any shape): each [*pages.shape, page, H, D]."""
    k, v = (plane.index_select(1, pages.flatten()).permute(1, 2, 0, 3) for plane in planes)
    return k.view(*pages.shape, *k.shape[1:]), v.view(*pages.shape, *v.shape[1:])
