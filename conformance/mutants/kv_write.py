"""Wrong and right kernels of kv_write, in our own layout."""

from __future__ import annotations

import torch

from conformance.mutants.mutant import cheat, right, wrong
from core.kernels.reference import kv
from core.kernels.reference.kv import Planes


def _at(k: torch.Tensor, v: torch.Tensor, planes: Planes, rows: torch.Tensor) -> Planes:
    """Write to these rows of the flat planes."""
    for plane, x in zip(planes, (k, v), strict=True):
        plane.view(-1, *plane.shape[2:])[rows.long()] = x
    return planes


def _num_slots(planes: Planes) -> int:
    return planes[0].shape[0] * planes[0].shape[1]


@wrong("kv_write")
def kv_write_slot_plus_1(
    k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
) -> Planes:
    return _at(k, v, planes, torch.where(slots < 0, 0, (slots + 1) % _num_slots(planes)))


@wrong("kv_write")
def kv_write_slot_minus_1(
    k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
) -> Planes:
    return _at(k, v, planes, (slots - 1).clamp(min=0))


@wrong("kv_write")
def kv_write_next_page(
    k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
) -> Planes:
    return _at(k, v, planes, torch.where(slots < 0, 0, (slots + page_tokens) % _num_slots(planes)))


@wrong("kv_write")
def kv_write_skipped_to_the_end(
    k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
) -> Planes:
    """Slot -1 as Python has it."""
    return _at(k, v, planes, slots)


@wrong("kv_write")
def kv_write_skipped_to_page_1(
    k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
) -> Planes:
    return _at(k, v, planes, slots.clamp(min=page_tokens))


@wrong("kv_write")
def kv_write_all_after_a_skip_lost(
    k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
) -> Planes:
    going = (slots < 0).cumsum(0) == 0
    return _at(k[going], v[going], planes, slots[going])


@wrong("kv_write")
def kv_write_keys_for_values(
    k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
) -> Planes:
    return kv.kv_write(k, k, planes, slots, page_tokens=page_tokens)


@wrong("kv_write")
def kv_write_keys_and_values_swapped(
    k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
) -> Planes:
    return kv.kv_write(v, k, planes, slots, page_tokens=page_tokens)


@wrong("kv_write")
def kv_write_heads_swapped(
    k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
) -> Planes:
    return kv.kv_write(k.flip(1), v.flip(1), planes, slots, page_tokens=page_tokens)


@wrong("kv_write")
def kv_write_one_head(
    k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
) -> Planes:
    return kv.kv_write(k[:, :1].expand_as(k), v[:, :1].expand_as(v), planes, slots, page_tokens=page_tokens)


@wrong("kv_write")
def kv_write_last_token_lost(
    k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
) -> Planes:
    return kv.kv_write(k[:-1], v[:-1], planes, slots[:-1], page_tokens=page_tokens)


@wrong("kv_write")
def kv_write_whole_blocks_only(
    k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
) -> Planes:
    """The tail of a step that is no multiple of 16 is not written."""
    whole = len(slots) // 16 * 16
    return kv.kv_write(k[:whole], v[:whole], planes, slots[:whole], page_tokens=page_tokens)


@wrong("kv_write")
def kv_write_end_of_page_lost(
    k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
) -> Planes:
    kept = torch.where(slots % page_tokens == page_tokens - 1, -1, slots)
    return kv.kv_write(k, v, planes, kept, page_tokens=page_tokens)


@wrong("kv_write")
def kv_write_rest_of_page_cleared(
    k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
) -> Planes:
    for plane in planes:
        plane[slots[slots >= 0].long() // page_tokens] = 0
    return kv.kv_write(k, v, planes, slots, page_tokens=page_tokens)


@wrong("kv_write")
def kv_write_end_of_heads_lost(
    k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
) -> Planes:
    size = k.shape[-1] - 8
    halves = tuple(plane[..., :size] for plane in planes)
    rows = slots.clamp(min=0).long()
    for plane, x in zip(halves, (k, v), strict=True):
        plane[rows // page_tokens, rows % page_tokens] = x[..., :size]
    return planes


@wrong("kv_write")
def kv_write_pages_of_16(
    k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
) -> Planes:
    rows = slots.clamp(min=0).long()
    for plane, x in zip(planes, (k, v), strict=True):
        plane[rows // 16 % len(plane), rows % min(16, page_tokens)] = x
    return planes


@wrong("kv_write")
def kv_write_dense_strides(
    k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
) -> Planes:
    """Takes heads of tokens to lie one after the other: wrong for slices of a joined projection."""
    k, v = (x.as_strided(x.shape, (x.shape[1] * x.shape[2], x.shape[2], 1)) for x in (k, v))
    return kv.kv_write(k, v, planes, slots, page_tokens=page_tokens)


@wrong("kv_write")
def kv_write_mask_multiplied(
    k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
) -> Planes:
    """What was in the pool, perhaps NaN, times 0."""
    for plane, x in zip(planes, (k, v), strict=True):
        flat = plane.view(-1, *plane.shape[2:])
        new = torch.zeros_like(flat).index_copy_(0, slots.clamp(min=0).long(), x)
        keep = torch.ones(len(flat), dtype=flat.dtype).index_fill_(0, slots.clamp(min=0).long(), 0)
        flat.copy_(flat * keep[:, None, None] + new)
    return planes


@wrong("kv_write")
def kv_write_slots_sorted(
    k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
) -> Planes:
    return kv.kv_write(k, v, planes, slots.sort().values, page_tokens=page_tokens)


@wrong("kv_write")
def kv_write_through_bfloat16(
    k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
) -> Planes:
    k, v = (x.bfloat16().to(x.dtype) for x in (k, v))
    return kv.kv_write(k, v, planes, slots, page_tokens=page_tokens)


@wrong("kv_write")
def kv_write_small_numbers_flushed(
    k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
) -> Planes:
    k, v = (x.masked_fill(x.abs() < torch.finfo(x.dtype).tiny, 0) for x in (k, v))
    return kv.kv_write(k, v, planes, slots, page_tokens=page_tokens)


@cheat("kv_write")
def kv_write_inputs_spoiled(
    k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
) -> Planes:
    kv.kv_write(k, v, planes, slots, page_tokens=page_tokens)
    k.zero_()
    return planes


@cheat("kv_write")
def kv_write_nothing(
    k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
) -> Planes:
    return planes


@right("kv_write")
def kv_write_looped(
    k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
) -> Planes:
    for i, slot in enumerate(slots.tolist()):
        if slot >= 0:
            for plane, x in zip(planes, (k, v), strict=True):
                plane[slot // page_tokens, slot % page_tokens] = x[i]
    return planes


@right("kv_write")
def kv_write_skipped_dropped(
    k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
) -> Planes:
    return _at(k[slots >= 0], v[slots >= 0], planes, slots[slots >= 0])


@right("kv_write")
def kv_write_null_page_spoiled(
    k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
) -> Planes:
    """Page 0 is nobody's."""
    for plane in planes:
        plane[0] = 7
    return _at(k, v, planes, torch.where(slots < 0, page_tokens - 1, slots))


@right("kv_write")
def kv_write_scattered_anew(
    k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
) -> Planes:
    """Gives back other tensors than it got: callers use what is returned."""
    return kv.kv_write(k, v, tuple(plane.clone() for plane in planes), slots, page_tokens=page_tokens)
