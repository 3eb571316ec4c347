"""The paged KV cache: codes of 8 bits, where they go, and blocks that move.

Legend: T tokens, H heads, D head size, P pages, R rows.
"""

from __future__ import annotations

import torch

from devices.kunlun.limits import HEAD_SIZES
from devices.kunlun.sim.vendor.launch import FLOATS, OK, REFUSED, Declared, fits, launch, pages

_SMALLEST = 2.0**-126


def quant2d(x: torch.Tensor, y: torch.Tensor, max: torch.Tensor, *, force_sdnn: bool = False) -> int:
    """y [R, D] int8 = x [R, D] * 127 / max, rounded to even; max [R] float32 = the greatest magnitude of each row."""
    if not (fits(FLOATS, x) and fits(torch.int8, y) and fits(torch.float32, max)):
        return REFUSED

    def run(x: torch.Tensor, y: torch.Tensor, max: torch.Tensor) -> None:
        wide = x.float()
        greatest = wide.abs().amax(-1)
        scale = greatest.clamp(min=_SMALLEST) / 127
        # What is not a number has no code; which integer comes of it would depend on the host.
        y.copy_((wide / scale[:, None]).round_().clamp_(-127, 127).nan_to_num_(0))
        max.copy_(greatest)

    return launch("quant2d", run, [x], [y, max], 4 * x.numel())


def reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> int:
    """Codes key and value [T, H, D] to slots [T] int32 of caches [P, H, page, D]; slot -1 skips.

    The vendor's writes beside the slot in a cache with gaps, and says 0; this one refuses it.
    """
    caches = key_cache, value_cache
    if not (fits(torch.int8, key, value, *caches) and fits(torch.int32, slot_mapping)):
        return REFUSED
    if key_cache.shape[3] not in HEAD_SIZES or key_cache.shape != value_cache.shape:
        return REFUSED
    return _scattered("reshape_and_cache", key, value, caches, slot_mapping, heads_first=True)


def reshape_and_cache_flash(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    BLHD_LAYOUT: bool,
) -> int:
    """As `reshape_and_cache`, for numbers, and here for caches [P, page, H, D] alone (BLHD_LAYOUT)."""
    caches = key_cache, value_cache
    if not (
        BLHD_LAYOUT and fits(key.dtype, key, value, *caches) and fits(FLOATS, key) and fits(torch.int32, slot_mapping)
    ):
        return REFUSED
    return _scattered("reshape_and_cache_flash", key, value, caches, slot_mapping, heads_first=False)


def _scattered(
    name: str,
    key: torch.Tensor,
    value: torch.Tensor,
    caches: tuple[torch.Tensor, torch.Tensor],
    slot_mapping: torch.Tensor,
    *,
    heads_first: bool,
) -> int:
    page = caches[0].shape[2 if heads_first else 1]

    def run(key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor, *caches: torch.Tensor) -> None:
        kept = slots >= 0
        at = slots[kept].long()
        for cache, x in zip(caches, (key, value), strict=True):
            by_page = cache.transpose(1, 2) if heads_first else cache
            by_page[at // page, at % page] = x[kept]

    return launch(name, run, [key, value, slot_mapping], [pages(cache, slot_mapping, page) for cache in caches])


def swap_blocks(src: torch.Tensor, dst: torch.Tensor, block_mapping: torch.Tensor) -> int:
    """Start copying pages of src to pages of dst: block_mapping [n, 2] int64, of the host. One pool is on the host."""
    if not (src.is_contiguous() and dst.is_contiguous() and block_mapping.device.type == "cpu"):
        return REFUSED
    Declared.by_page = True
    for source, target in block_mapping.tolist():
        dst[target].copy_(src[source], non_blocking=True)
    return OK
