"""The KV pool in INT8: codes, and for each token and head the greatest magnitude that they are parts of.

How it works. The vendor's own INT8 cache has one fixed scale per channel, found beforehand; numbers beyond it are cut
off, and nothing could be said of the error. Here each token's D numbers of a head are quantised by their own greatest
magnitude (the vendor's quant2d, made for activations), so that a stored number is off by half a code at most.

Legend: T tokens, H key and value heads, D head size, P pages.
"""

from __future__ import annotations

import torch

from core.kernels.dtypes import TORCH_DTYPES
from core.kernels.reference.kv import KVLayout, Plane, Planes
from devices.kunlun.ops import Ops

# Half a code of 127, and what the quotient and the product lose in float32.
KV_ERROR = (1 + 2**-12) / 254


def kv_layout(*, num_kv_heads: int, head_size: int, page_tokens: int, dtype: str) -> KVLayout:
    """Codes of keys and of values, each [P, H, page, D] int8; then their magnitudes, each [P, page, H] in `dtype`.

    The greatest of some numbers is one of them, so that the dtype they had holds it as it is.
    """
    codes = Plane("int8", (0, num_kv_heads, page_tokens, head_size), 0)
    most = Plane(dtype, (0, page_tokens, num_kv_heads), 0)
    num_bytes = 2 * num_kv_heads * page_tokens * (head_size + TORCH_DTYPES[dtype].itemsize)
    return KVLayout((codes, codes, most, most), num_bytes, f"kunlun-int8-{dtype}", kv_error=KV_ERROR)


def kv_gather(planes: Planes, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """k and v of `pages` (int32, any shape): each [*pages.shape, page, H, D]. Made of torch's ops."""
    found = []
    for codes, most in zip(planes[:2], planes[2:], strict=True):
        wide = codes[pages].transpose(-3, -2).float() * (most[pages].float() / 127)[..., None]
        limit = torch.finfo(most.dtype).max  # 127 times its 127th part may be rounded to infinity
        found.append(wide.clamp_(-limit, limit).to(most.dtype))
    return found[0], found[1]


class KV:
    """Kernels of the rows of these names."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops

    def kv_write(
        self, k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
    ) -> Planes:
        """Write k and v [T, H, D] in place at `slots` [T] int32; slot -1 skips."""
        codes, greatest = zip(*(self._quantised(x) for x in (k, v)), strict=True)
        self._ops.reshape_and_cache(*codes, *planes[:2], slots)
        # The maxima of a token's heads are to the op what the numbers of a head are, of which each token has one.
        most, pools = ([x[..., None, :] for x in some] for some in (greatest, planes[2:]))
        self._ops.reshape_and_cache_flash(*most, *pools, slots, BLHD_LAYOUT=True)
        return planes

    def _quantised(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x [T, H, D] -> codes [T, H, D] int8, greatest magnitudes [T, H] in the dtype of x."""
        x = x.contiguous()
        codes = torch.empty_like(x, dtype=torch.int8)
        most = torch.empty(x.shape[:2], dtype=torch.float32, device=x.device)
        rows = x.shape[0] * x.shape[1]
        self._ops.quant2d(x.view(rows, x.shape[2]), codes.view(rows, x.shape[2]), most.view(rows), force_sdnn=True)
        return codes, most.to(x.dtype)

    def kv_swap(
        self,
        target: Planes,
        source: Planes,
        target_pages: torch.Tensor,
        source_pages: torch.Tensor,
        *,
        layout: KVLayout,
    ) -> Planes:
        """Start copying pages of `source` to pages of `target`, in place; one of them is pinned memory of the host."""
        pairs = torch.stack([source_pages, target_pages], 1).long()
        for into, out_of in zip(target, source, strict=True):
            self._ops.swap_blocks(out_of, into, pairs)
        return target
