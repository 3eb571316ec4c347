"""The KV pool: its layout, writing, gathering, and the canonical form that travels between devices.

`planes` is a tuple of tensors: the pool of ONE layer. The reference layout is two planes, keys and values, each
[P, page, H, D] in the model's dtype. Page 0 is the null page: never leased, it takes what nobody may read.

Legend: T tokens, P pages in the pool, N pages chosen, H key and value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from core.kernels.dtypes import TORCH_DTYPES

Planes = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Plane:
    """One tensor of a layer's pool.

    shape       with 0 where the number of pages stands
    page_axis   that place
    """

    dtype: str
    shape: tuple[int, ...]
    page_axis: int


@dataclass(frozen=True)
class KVLayout:
    """How a provider keeps one layer's keys and values.

    bytes_per_page   of one layer, all planes
    format_id        pools with the same id, page size, heads and head size hold interchangeable bytes
    kv_error         greatest error of a stored number, as a part of the greatest magnitude among the D numbers of its
                     token and head; 0: numbers come back with the bits they had
    """

    planes: tuple[Plane, ...]
    bytes_per_page: int
    format_id: str
    kv_error: float = 0.0

    def shapes(self, num_pages: int) -> list[tuple[int, ...]]:
        """The shape of each plane of a pool of `num_pages` pages."""
        return [(*p.shape[: p.page_axis], num_pages, *p.shape[p.page_axis + 1 :]) for p in self.planes]


def kv_layout(*, num_kv_heads: int, head_size: int, page_tokens: int, dtype: str) -> KVLayout:
    """Keys and values, each [P, page, H, D] in `dtype`."""
    plane = Plane(dtype, (0, page_tokens, num_kv_heads, head_size), 0)
    num_bytes = 2 * page_tokens * num_kv_heads * head_size * TORCH_DTYPES[dtype].itemsize
    return KVLayout((plane, plane), num_bytes, f"kv-NHD-{dtype}")


def kv_write(k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int) -> Planes:
    """Write k and v [T, H, D] in place at `slots` [T] int32 = page * page_tokens + offset.

    Slot -1 goes to the null page: a fixed number of rows is written, whatever the slots are.
    """
    # Clamped to 0 it is the first slot of page 0.
    rows = slots.clamp(min=0).long()
    for plane, x in zip(planes, (k, v), strict=True):
        plane.view(-1, *plane.shape[2:]).index_copy_(0, rows, x)
    return planes


def kv_gather(planes: Planes, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """k and v of `pages` (int32, any shape): each [*pages.shape, page, H, D] in the model's dtype.

    Entries that were never written come out as they are: undefined, maybe NaN.
    """
    k, v = planes
    return k[pages], v[pages]


def kv_export(layers: Sequence[Planes], pages: torch.Tensor, *, kv_gather: Callable[..., Any]) -> torch.Tensor:
    """`pages` [N] int32 of every layer as [layers, 2, N, page, H, D]: keys, then values."""
    return torch.stack([torch.stack(kv_gather(planes, pages)) for planes in layers])


def kv_import(
    layers: Sequence[Planes], pages: torch.Tensor, canonical: torch.Tensor, *, kv_write: Callable[..., Any]
) -> list[Planes]:
    """Write canonical [layers, 2, N, page, H, D] into `pages` [N] int32 of every layer, in place."""
    page_tokens = canonical.shape[3]
    offsets = torch.arange(page_tokens, dtype=torch.int32, device=pages.device)
    slots = (pages[:, None] * page_tokens + offsets).flatten()
    return [
        kv_write(layer[0].flatten(0, 1), layer[1].flatten(0, 1), planes, slots, page_tokens=page_tokens)
        for planes, layer in zip(layers, canonical, strict=True)
    ]
