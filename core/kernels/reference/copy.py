"""Copies between pages and rows.

Legend: N pairs of pages, R rows of the target, K rows given. Pages and rows are int32.
"""

import torch

from core.kernels.reference.kv import KVLayout, Planes


def kv_copy(planes: Planes, source_pages: torch.Tensor, target_pages: torch.Tensor, *, layout: KVLayout) -> Planes:
    """Copy pages [N] to pages [N] in place. Target pages are distinct; all reads come before all writes."""
    return kv_swap(planes, planes, target_pages, source_pages, layout=layout)


def kv_swap(
    target: Planes, source: Planes, target_pages: torch.Tensor, source_pages: torch.Tensor, *, layout: KVLayout
) -> Planes:
    """Copy pages [N] of `source` to pages [N] of `target`, which may lie in another memory; target in place.

    Page numbers are on the host, which tells a copy engine of them: nothing need be waited for.
    """
    for plane, into, out_of in zip(layout.planes, target, source, strict=True):
        axis = plane.page_axis
        moved = out_of.index_select(axis, source_pages.to(out_of.device))
        into.index_copy_(axis, target_pages.to(into.device).long(), moved.to(into.device))
    return target


def copy_rows(target: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Write values [K, ...] into rows [K] of target [R, ...] in place. Rows are distinct; row -1 skips."""
    if rows.shape[0] == 0:
        return target
    # Shapes are fixed, so a skipped row repeats the first one that is not: the same bytes to the same place.
    valid = rows >= 0
    repeat = torch.where(valid, torch.arange(rows.shape[0], device=rows.device), valid.int().argmax())
    index = rows[repeat].clamp(min=0).long()
    # With every row skipped, row 0 is written with what it holds.
    return target.index_copy_(0, index, torch.where(valid.any(), values[repeat], target[index]))
