"""Wrong and right kernels of kv_copy and kv_swap."""

from __future__ import annotations

import torch

from conformance.mutants import layouts
from conformance.mutants.mutant import CATALOGUE, Mutant, cheat, right, wrong
from core.kernels.reference import copy
from core.kernels.reference.kv import KVLayout, Planes

for _form in (*layouts.FORMS, layouts.Codes()):
    _name = _form.name if isinstance(_form, layouts.Form) else "int8"
    _rows = tuple(_form.rows.items())
    CATALOGUE.append(Mutant("kv_copy", _name, "right", copy.kv_copy, _rows))
    CATALOGUE.append(Mutant("kv_swap", _name, "right", copy.kv_swap, _rows))


def _first_uses(pages: torch.Tensor) -> torch.Tensor:
    """Where each page stands first."""
    listed = pages.tolist()
    return torch.tensor([i for i, page in enumerate(listed) if listed.index(page) == i], dtype=torch.int64)


# kv_copy


@wrong("kv_copy")
def kv_copy_one_after_the_other(
    planes: Planes, source_pages: torch.Tensor, target_pages: torch.Tensor, *, layout: KVLayout
) -> Planes:
    """Reads pages that were written before."""
    for source, target in zip(torch.split(source_pages, 1), torch.split(target_pages, 1), strict=True):
        copy.kv_copy(planes, source, target, layout=layout)
    return planes


@wrong("kv_copy")
def kv_copy_last_one_first(
    planes: Planes, source_pages: torch.Tensor, target_pages: torch.Tensor, *, layout: KVLayout
) -> Planes:
    pairs = zip(torch.split(source_pages.flip(0), 1), torch.split(target_pages.flip(0), 1), strict=True)
    for source, target in pairs:
        copy.kv_copy(planes, source, target, layout=layout)
    return planes


@wrong("kv_copy")
def kv_copy_blocks_of_4(
    planes: Planes, source_pages: torch.Tensor, target_pages: torch.Tensor, *, layout: KVLayout
) -> Planes:
    """Reads before writes, but within a block only."""
    for source, target in zip(torch.split(source_pages, 4), torch.split(target_pages, 4), strict=True):
        copy.kv_copy(planes, source, target, layout=layout)
    return planes


@wrong("kv_copy")
def kv_copy_backwards(
    planes: Planes, source_pages: torch.Tensor, target_pages: torch.Tensor, *, layout: KVLayout
) -> Planes:
    first = _first_uses(source_pages)
    return copy.kv_copy(planes, target_pages[first], source_pages[first], layout=layout)


@wrong("kv_copy")
def kv_copy_keys_only(
    planes: Planes, source_pages: torch.Tensor, target_pages: torch.Tensor, *, layout: KVLayout
) -> Planes:
    some = KVLayout(layout.planes[:1], layout.bytes_per_page, layout.format_id)
    copy.kv_copy(planes[:1], source_pages, target_pages, layout=some)
    return planes


@wrong("kv_copy")
def kv_copy_last_pair_lost(
    planes: Planes, source_pages: torch.Tensor, target_pages: torch.Tensor, *, layout: KVLayout
) -> Planes:
    return copy.kv_copy(planes, source_pages[:-1], target_pages[:-1], layout=layout)


@wrong("kv_copy")
def kv_copy_targets_sorted(
    planes: Planes, source_pages: torch.Tensor, target_pages: torch.Tensor, *, layout: KVLayout
) -> Planes:
    return copy.kv_copy(planes, source_pages, target_pages.sort().values, layout=layout)


@wrong("kv_copy")
def kv_copy_page_truncated(
    planes: Planes, source_pages: torch.Tensor, target_pages: torch.Tensor, *, layout: KVLayout
) -> Planes:
    for plane in planes:
        moved = plane[source_pages][:, :-1]
        plane[target_pages.long(), : plane.shape[1] - 1] = moved
    return planes


@wrong("kv_copy")
def kv_copy_first_16_tokens(
    planes: Planes, source_pages: torch.Tensor, target_pages: torch.Tensor, *, layout: KVLayout
) -> Planes:
    for plane in planes:
        moved = plane[source_pages][:, :16]
        plane[target_pages.long(), :16] = moved
    return planes


@wrong("kv_copy", more=layouts.HEADS_FIRST.rows)
def kv_copy_pages_taken_to_come_first(
    planes: Planes, source_pages: torch.Tensor, target_pages: torch.Tensor, *, layout: KVLayout
) -> Planes:
    for plane in planes:
        flat = plane.view(plane.shape[1], -1)
        flat[target_pages.long()] = flat[source_pages]
    return planes


@wrong("kv_copy")
def kv_copy_by_value(
    planes: Planes, source_pages: torch.Tensor, target_pages: torch.Tensor, *, layout: KVLayout
) -> Planes:
    """Not bit by bit: -0 becomes 0, and NaN another NaN."""
    for plane in planes:
        plane[target_pages.long()] = plane[source_pages] + 0.0
    return planes


@cheat("kv_copy")
def kv_copy_moved(
    planes: Planes, source_pages: torch.Tensor, target_pages: torch.Tensor, *, layout: KVLayout
) -> Planes:
    gone = [page for page in source_pages.tolist() if page not in target_pages.tolist()]
    copy.kv_copy(planes, source_pages, target_pages, layout=layout)
    for plane in planes:
        plane[gone] = 0
    return planes


@cheat("kv_copy")
def kv_copy_nothing(
    planes: Planes, source_pages: torch.Tensor, target_pages: torch.Tensor, *, layout: KVLayout
) -> Planes:
    return planes


@right("kv_copy")
def kv_copy_through_the_host(
    planes: Planes, source_pages: torch.Tensor, target_pages: torch.Tensor, *, layout: KVLayout
) -> Planes:
    held = [plane.clone() for plane in planes]
    for plane, old in zip(planes, held, strict=True):
        for source, target in zip(source_pages.tolist(), target_pages.tolist(), strict=True):
            plane[target] = old[source]
    return planes


@right("kv_copy")
def kv_copy_as_bytes(
    planes: Planes, source_pages: torch.Tensor, target_pages: torch.Tensor, *, layout: KVLayout
) -> Planes:
    for plane in planes:
        flat = plane.view(len(plane), -1).view(torch.uint8)
        flat[target_pages.long()] = flat[source_pages]
    return planes


# kv_swap


@wrong("kv_swap")
def kv_swap_pages_exchanged(
    target: Planes, source: Planes, target_pages: torch.Tensor, source_pages: torch.Tensor, *, layout: KVLayout
) -> Planes:
    """Both ways, as the name may be read."""
    distinct = _first_uses(source_pages)
    held = tuple(plane.clone() for plane in target)
    copy.kv_swap(target, source, target_pages, source_pages, layout=layout)
    copy.kv_swap(source, held, source_pages[distinct], target_pages[distinct], layout=layout)
    return target


@wrong("kv_swap")
def kv_swap_same_pages(
    target: Planes, source: Planes, target_pages: torch.Tensor, source_pages: torch.Tensor, *, layout: KVLayout
) -> Planes:
    return copy.kv_swap(target, source, target_pages, target_pages, layout=layout)


@wrong("kv_swap")
def kv_swap_arguments_turned(
    target: Planes, source: Planes, target_pages: torch.Tensor, source_pages: torch.Tensor, *, layout: KVLayout
) -> Planes:
    distinct = source_pages[_first_uses(source_pages)]
    return copy.kv_swap(target, source, distinct % len(target[0]), distinct, layout=layout)


@wrong("kv_swap")
def kv_swap_keys_only(
    target: Planes, source: Planes, target_pages: torch.Tensor, source_pages: torch.Tensor, *, layout: KVLayout
) -> Planes:
    some = KVLayout(layout.planes[:1], layout.bytes_per_page, layout.format_id)
    copy.kv_swap(target[:1], source[:1], target_pages, source_pages, layout=some)
    return target


@wrong("kv_swap")
def kv_swap_last_pair_lost(
    target: Planes, source: Planes, target_pages: torch.Tensor, source_pages: torch.Tensor, *, layout: KVLayout
) -> Planes:
    return copy.kv_swap(target, source, target_pages[:-1], source_pages[:-1], layout=layout)


@wrong("kv_swap")
def kv_swap_page_truncated(
    target: Planes, source: Planes, target_pages: torch.Tensor, source_pages: torch.Tensor, *, layout: KVLayout
) -> Planes:
    for into, out_of in zip(target, source, strict=True):
        into[target_pages.long(), :-1] = out_of[source_pages.long(), :-1]
    return target


@cheat("kv_swap")
def kv_swap_source_cleared(
    target: Planes, source: Planes, target_pages: torch.Tensor, source_pages: torch.Tensor, *, layout: KVLayout
) -> Planes:
    copy.kv_swap(target, source, target_pages, source_pages, layout=layout)
    for plane in source:
        plane[source_pages.long()] = 0
    return target


@right("kv_swap")
def kv_swap_page_by_page(
    target: Planes, source: Planes, target_pages: torch.Tensor, source_pages: torch.Tensor, *, layout: KVLayout
) -> Planes:
    for into, out_of in zip(torch.split(target_pages, 1), torch.split(source_pages, 1), strict=True):
        copy.kv_swap(target, source, into, out_of, layout=layout)
    return target


@right("kv_swap")
def kv_swap_put_in(
    target: Planes, source: Planes, target_pages: torch.Tensor, source_pages: torch.Tensor, *, layout: KVLayout
) -> Planes:
    for into, out_of in zip(target, source, strict=True):
        into.index_put_((target_pages.long(),), out_of[source_pages.long()])
    return target
