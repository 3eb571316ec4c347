"""Providers of whole layouts, wrong and right; and kernels of kv_layout and kv_gather, in our own layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from conformance.mutants import layouts
from conformance.mutants.layouts import Codes, Pair
from conformance.mutants.mutant import CATALOGUE, Mutant, cheat, right, wrong
from core.kernels.reference import kv
from core.kernels.reference.kv import KVLayout, Planes
from core.kernels.row import Kernel

_LAYOUT = ("kv_layout", "kv_write", "kv_gather")


def _provider(kind: str, name: str, rows: dict[str, Kernel], examined: Sequence[str] = _LAYOUT) -> None:
    """Several rows of one provider, each a kernel of the catalogue."""
    CATALOGUE.extend(Mutant(row, name, kind, rows[row], tuple(rows.items())) for row in examined)


for _form in layouts.FORMS:
    _provider("right", _form.name, _form.rows)
_provider("right", "int8", Codes().rows)
_provider("right", "int4", Codes(error=(1 + 2**-12) / 14, most=7).rows)

_provider("wrong", "one_scale_a_token", Codes(per_token=True).rows, ["kv_write"])
_provider("wrong", "one_scale_a_call", Codes(per_call=True).rows, ["kv_write"])
_provider("wrong", "codes_truncated", Codes(truncated=True).rows, ["kv_write"])
_provider("wrong", "codes_of_7_bits", Codes(most=63).rows, ["kv_write"])
_provider("wrong", "error_not_declared", Codes(error=0.0).rows, ["kv_write", "kv_gather"])
_provider("wrong", "error_over_any_code", Codes(error=0.9).rows, ["kv_layout"])
_provider("wrong", "error_below_0", Codes(error=-1.0).rows, ["kv_layout"])


# kv_layout


@wrong("kv_layout")
def kv_layout_keys_only_counted(*, num_kv_heads: int, head_size: int, page_tokens: int, dtype: str) -> KVLayout:
    right = kv.kv_layout(num_kv_heads=num_kv_heads, head_size=head_size, page_tokens=page_tokens, dtype=dtype)
    return replace(right, bytes_per_page=right.bytes_per_page // 2)


@wrong("kv_layout")
def kv_layout_two_bytes_a_number(*, num_kv_heads: int, head_size: int, page_tokens: int, dtype: str) -> KVLayout:
    """Right for two dtypes of three."""
    right = kv.kv_layout(num_kv_heads=num_kv_heads, head_size=head_size, page_tokens=page_tokens, dtype=dtype)
    return replace(right, bytes_per_page=4 * page_tokens * num_kv_heads * head_size)


@wrong("kv_layout")
def kv_layout_other_page_axis(*, num_kv_heads: int, head_size: int, page_tokens: int, dtype: str) -> KVLayout:
    right = kv.kv_layout(num_kv_heads=num_kv_heads, head_size=head_size, page_tokens=page_tokens, dtype=dtype)
    return replace(right, planes=tuple(replace(plane, page_axis=1) for plane in right.planes))


@wrong("kv_layout")
def kv_layout_page_axis_from_the_end(*, num_kv_heads: int, head_size: int, page_tokens: int, dtype: str) -> KVLayout:
    right = kv.kv_layout(num_kv_heads=num_kv_heads, head_size=head_size, page_tokens=page_tokens, dtype=dtype)
    return replace(right, planes=tuple(replace(plane, page_axis=-4) for plane in right.planes))


@wrong("kv_layout")
def kv_layout_without_format(*, num_kv_heads: int, head_size: int, page_tokens: int, dtype: str) -> KVLayout:
    right = kv.kv_layout(num_kv_heads=num_kv_heads, head_size=head_size, page_tokens=page_tokens, dtype=dtype)
    return replace(right, format_id="")


# kv_gather


@wrong("kv_gather")
def kv_gather_next_page(planes: Planes, pages: torch.Tensor) -> Pair:
    return kv.kv_gather(planes, (pages + 1) % len(planes[0]))


@wrong("kv_gather")
def kv_gather_pages_sorted(planes: Planes, pages: torch.Tensor) -> Pair:
    return kv.kv_gather(planes, pages.sort(-1).values)


@wrong("kv_gather")
def kv_gather_swapped(planes: Planes, pages: torch.Tensor) -> Pair:
    return kv.kv_gather(planes[::-1], pages)


@wrong("kv_gather")
def kv_gather_heads_swapped(planes: Planes, pages: torch.Tensor) -> Pair:
    k, v = kv.kv_gather(planes, pages)
    return k.flip(-2), v.flip(-2)


@wrong("kv_gather")
def kv_gather_values_shifted(planes: Planes, pages: torch.Tensor) -> Pair:
    k, v = kv.kv_gather(planes, pages)
    return k, v.roll(1, -3)


@wrong("kv_gather")
def kv_gather_tail_not_filled(planes: Planes, pages: torch.Tensor) -> Pair:
    k, v = kv.kv_gather(planes, pages)
    k[..., -1, :, :], v[..., -1, :, :] = 0, 0
    return k, v


@wrong("kv_gather")
def kv_gather_first_use_only(planes: Planes, pages: torch.Tensor) -> Pair:
    """A page that comes again is left out."""
    k, v = kv.kv_gather(planes, pages)
    flat, seen = pages.flatten().tolist(), set()
    for i, page in enumerate(flat):
        if page in seen:
            k.view(len(flat), *k.shape[-3:])[i] = 0
        seen.add(page)
    return k, v


@wrong("kv_gather")
def kv_gather_flat(planes: Planes, pages: torch.Tensor) -> Pair:
    return kv.kv_gather(planes, pages.flatten())


@wrong("kv_gather")
def kv_gather_in_float32(planes: Planes, pages: torch.Tensor) -> Pair:
    k, v = kv.kv_gather(planes, pages)
    return k.float(), v.float()


@wrong("kv_gather")
def kv_gather_dense_table(planes: Planes, pages: torch.Tensor) -> Pair:
    """Takes rows of the block table to lie one after the other."""
    dense = torch.empty(pages.shape, dtype=pages.dtype).stride()
    return kv.kv_gather(planes, pages.as_strided(pages.shape, dense))


_seen: dict[tuple[int, int], Pair] = {}


@cheat("kv_gather")
def kv_gather_stale(planes: Planes, pages: torch.Tensor) -> Pair:
    """What these pages held when they were asked for first."""
    key = planes[0].data_ptr(), hash(tuple(pages.flatten().tolist()))
    found = kv.kv_gather(planes, pages)
    if key not in _seen or _seen[key][0].shape != found[0].shape or _seen[key][0].dtype != found[0].dtype:
        _seen[key] = found
    return _seen[key]


@cheat("kv_gather")
def kv_gather_pool_cleared(planes: Planes, pages: torch.Tensor) -> Pair:
    found = kv.kv_gather(planes, pages)
    for plane in planes:
        plane[pages] = 0
    return found


@right("kv_gather")
def kv_gather_looped(planes: Planes, pages: torch.Tensor) -> Pair:
    k, v = (plane.new_empty((pages.numel(), *plane.shape[1:])) for plane in planes)
    for i, page in enumerate(pages.flatten().tolist()):
        k[i], v[i] = planes[0][page], planes[1][page]
    return k.view(*pages.shape, *k.shape[1:]), v.view(*pages.shape, *v.shape[1:])


@right("kv_gather")
def kv_gather_null_page_cleared(planes: Planes, pages: torch.Tensor) -> Pair:
    k, v = kv.kv_gather(planes, pages)
    null = (pages == 0)[..., None, None, None]
    return k.masked_fill(null, 0), v.masked_fill(null, 0)
