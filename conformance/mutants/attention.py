"""Wrong kernels of attn_paged: what they read, see, and score. What they make of scores: `attention_sums`.

Legend as in `conformance.mutants.attention_plain`.
"""

from __future__ import annotations

import torch

from conformance.mutants.attention_plain import (
    Entries,
    Plan,
    Tensor,
    cap,
    limit,
    read,
    read_whole_pages,
    score,
    seen,
    share,
    wrong_part,
    wrong_parts,
)
from core.kernels.reference.kv import Planes

# Pages


@wrong_part("row_of")
def row_of_the_next_sequence(plan: Plan, s: int) -> Tensor:
    return plan.table[(s + 1) % len(plan.table)]


@wrong_part("row_of")
def row_of_the_first_sequence(plan: Plan, s: int) -> Tensor:
    return plan.table[0]


@wrong_part("row_of")
def pages_in_a_row(plan: Plan, s: int) -> Tensor:
    """Takes a sequence's pages to follow its first one."""
    return plan.table[s, 0] + torch.arange(plan.table.shape[1])


@wrong_part("row_of")
def pages_sorted(plan: Plan, s: int) -> Tensor:
    held = plan.table[s] > 0
    return torch.cat((plan.table[s][held].sort().values, plan.table[s][~held]))


@wrong_part("read")
def stale_page(planes: Planes, pages: Tensor, length: int, page: int) -> Entries:
    """Has not heard of a page that this step begins."""
    if length > page and length % page == 1:
        pages = pages.clone()
        pages[length // page] = pages[length // page - 1]
    return read(planes, pages, length, page)


@wrong_part("read")
def pages_swapped(planes: Planes, pages: Tensor, length: int, page: int) -> Entries:
    """The last two."""
    last = (length - 1) // page
    order = torch.arange(len(pages))
    if last:
        order[last - 1 : last + 1] = torch.tensor([last, last - 1])
    return read(planes, pages[order], length, page)


@wrong_part("read")
def pages_of_values_swapped(planes: Planes, pages: Tensor, length: int, page: int) -> Entries:
    """The first two, where both are full: no length or mask shows it."""
    other = torch.cat((pages[1:2], pages[:1], pages[2:])) if length >= 2 * page else pages
    return read(planes, pages, length, page)[0], read(planes, other, length, page)[1]


@wrong_part("read")
def page_after_the_table(planes: Planes, pages: Tensor, length: int, page: int) -> Entries:
    """Looks up a page more than a row of the table has."""
    row = torch.as_strided(pages, (len(pages) + 1,), (1,), pages.storage_offset())
    k, v = read(planes, row, (len(pages) + 1) * page, page)
    return k[:length], v[:length]


@wrong_part("read")
def last_entry_stale(planes: Planes, pages: Tensor, length: int, page: int) -> Entries:
    """Reads the last entry before it is written: here, the one before it."""
    k, v = read(planes, pages, length, page)
    order = torch.arange(length)
    order[-1] = max(0, length - 2)
    return k[order], v[order]


@wrong_part("read")
def values_shifted(planes: Planes, pages: Tensor, length: int, page: int) -> Entries:
    k, v = read(planes, pages, length, page)
    return k, v.roll(1, 0)


@wrong_part("read")
def keys_for_values(planes: Planes, pages: Tensor, length: int, page: int) -> Entries:
    return read((planes[0], planes[0]), pages, length, page)


def _see_the_tail(at: Tensor, entry: Tensor, window: int | None) -> Tensor:
    return seen(at, entry, window) | (entry > at.max())


def _read_zeros_after_the_end(planes: Planes, pages: Tensor, length: int, page: int) -> Entries:
    k, v = (x.nan_to_num() for x in read(planes, pages, -(-length // page) * page, page))
    return k, v


wrong_parts("tail_of_the_page_included", read=read_whole_pages, seen=_see_the_tail)
wrong_parts("tail_of_the_page_as_zeros", read=_read_zeros_after_the_end, seen=_see_the_tail)


def _leave(x: Tensor, is_read: Tensor) -> Tensor:
    return x


def _added_mask(scores: Tensor, softcap: float | None, visible: Tensor) -> Tensor:
    return cap(scores, softcap) + torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))


wrong_parts("values_not_selected", read=read_whole_pages, clean=_leave)
wrong_parts("mask_added", read=read_whole_pages, clean=_leave, limit=_added_mask)

# Masks


@wrong_part("seen")
def mask_one_more(at: Tensor, entry: Tensor, window: int | None) -> Tensor:
    return seen(at, entry, window) | (entry == at + 1)


@wrong_part("seen")
def mask_one_less(at: Tensor, entry: Tensor, window: int | None) -> Tensor:
    return seen(at, entry, window) & (entry < at)


@wrong_part("seen")
def mask_from_the_top_left(at: Tensor, entry: Tensor, window: int | None) -> Tensor:
    """As if the first query were at position 0."""
    return seen(at - at.min(), entry, window)


@wrong_part("seen")
def mask_of_blocks(at: Tensor, entry: Tensor, window: int | None) -> Tensor:
    """Queries see the whole tile of 16 queries that they are in."""
    return seen(at // 16 * 16 + 15, entry, None) & ((entry > at - window) if window else torch.ones_like(entry > at))


@wrong_part("seen")
def no_mask(at: Tensor, entry: Tensor, window: int | None) -> Tensor:
    return torch.ones_like(entry <= at) if window is None else entry > at - window


@wrong_part("seen")
def first_key_lost(at: Tensor, entry: Tensor, window: int | None) -> Tensor:
    return seen(at, entry, window) & ((entry > 0) | (at == 0))


@wrong_part("seen")
def last_key_lost(at: Tensor, entry: Tensor, window: int | None) -> Tensor:
    """Of sequences over 32, at the end of them."""
    return seen(at, entry, window) & ((entry < entry.max()) | (entry.max() < 32))


@wrong_part("seen")
def window_one_more(at: Tensor, entry: Tensor, window: int | None) -> Tensor:
    return seen(at, entry, window + 1 if window else None)


@wrong_part("seen")
def window_one_less(at: Tensor, entry: Tensor, window: int | None) -> Tensor:
    return seen(at, entry, max(1, window - 1) if window else None)


@wrong_part("seen")
def window_ignored(at: Tensor, entry: Tensor, window: int | None) -> Tensor:
    return seen(at, entry, None)


@wrong_part("seen")
def window_of_the_last_query(at: Tensor, entry: Tensor, window: int | None) -> Tensor:
    return (entry <= at) if window is None else (entry <= at) & (entry > at.max() - window)


@wrong_part("seen")
def window_of_whole_pages(at: Tensor, entry: Tensor, window: int | None) -> Tensor:
    """What is in a page with something to see is seen."""
    return (entry <= at) if window is None else (entry <= at) & (entry >= (at - window + 1) // 16 * 16)


# Heads


@wrong_part("share")
def heads_tiled(x: Tensor, num_heads: int) -> Tensor:
    """Head h shares key head h % Hkv."""
    return x.repeat(1, num_heads // x.shape[1], 1)


@wrong_part("share")
def next_key_head(x: Tensor, num_heads: int) -> Tensor:
    return share(x, num_heads).roll(1, 1)


@wrong_part("store")
def heads_swapped(o: Tensor, dtype: torch.dtype) -> Tensor:
    """Each with its neighbour."""
    heads = torch.arange(o.shape[1])
    return o[:, (heads ^ 1).clamp(max=o.shape[1] - 1)].to(dtype)


@wrong_part("store")
def last_head_lost(o: Tensor, dtype: torch.dtype) -> Tensor:
    """Heads go in pairs."""
    return torch.cat((o[:, : o.shape[1] // 2 * 2], torch.zeros_like(o[:, o.shape[1] // 2 * 2 :])), 1).to(dtype)


@wrong_part("store")
def padded_head_size(o: Tensor, dtype: torch.dtype) -> Tensor:
    """Dimensions past the last multiple of 32 are left out."""
    return torch.cat((o[..., : o.shape[2] // 32 * 32], torch.zeros_like(o[..., o.shape[2] // 32 * 32 :])), 2).to(dtype)


# Scores


@wrong_part("score")
def scale_squared(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """1 / D, for 1 / sqrt(D)."""
    return score(q, k, scale * scale)


@wrong_part("score")
def scale_one_percent_off(q: Tensor, k: Tensor, scale: float) -> Tensor:
    return score(q, k, scale * 1.01)


@wrong_part("score")
def scale_of_the_head_size(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Whatever scale was asked for."""
    return score(q, k, q.shape[2] ** -0.5)


@wrong_part("score")
def scores_in_bfloat16(q: Tensor, k: Tensor, scale: float) -> Tensor:
    return score(q, k, scale).bfloat16().float()


@wrong_part("score")
def scores_in_float16(q: Tensor, k: Tensor, scale: float) -> Tensor:
    return score(q, k, scale).half().float()


@wrong_part("score")
def queries_scaled_in_bfloat16(q: Tensor, k: Tensor, scale: float) -> Tensor:
    return score((q * scale).bfloat16().float(), k, 1.0)


@wrong_part("limit")
def softcap_ignored(scores: Tensor, softcap: float | None, visible: Tensor) -> Tensor:
    return limit(scores, None, visible)


@wrong_part("limit")
def softcap_after_the_mask(scores: Tensor, softcap: float | None, visible: Tensor) -> Tensor:
    return cap(limit(scores, None, visible), softcap)


@wrong_part("limit")
def softcap_not_multiplied_back(scores: Tensor, softcap: float | None, visible: Tensor) -> Tensor:
    return limit(scores / softcap if softcap else scores, 1.0 if softcap else None, visible)


@wrong_part("limit")
def scores_clamped(scores: Tensor, softcap: float | None, visible: Tensor) -> Tensor:
    """For tanh."""
    return limit(scores.clamp(-softcap, softcap) if softcap else scores, None, visible)


@wrong_part("limit")
def mask_of_ten_thousand(scores: Tensor, softcap: float | None, visible: Tensor) -> Tensor:
    """Stands for minus infinity."""
    return cap(scores, softcap).masked_fill(~visible, -10000.0)
