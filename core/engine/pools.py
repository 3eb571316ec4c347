"""The KV pools of an engine: how each group's pages are laid out, how large they are, and the planes themselves."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from core.engine.canonical import Exchanged
from core.engine.transfers import Swapped
from core.kernels.bind import KernelSet
from core.kernels.dtypes import TORCH_DTYPES
from core.kernels.reference.kv import KVLayout
from core.kv.groups import KVGroup
from core.model.layers import Builder, Planes
from core.plugin.device import Device
from core.plugin.facts import Need


def layout_of(kernels: KernelSet, group: KVGroup, b: Builder) -> KVLayout:
    """How this rank's share of a group is laid out."""
    layout: KVLayout = kernels.bind("kv_layout", _need(group, b))(
        num_kv_heads=b.split(group.num_kv_heads), head_size=group.head_size, page_tokens=b.page_tokens, dtype=b.dtype
    )
    return layout


def page_bytes(groups: Sequence[KVGroup], layouts: Sequence[KVLayout]) -> tuple[int, ...]:
    """Of one page of all layers, per group."""
    return tuple(g.num_layers * layout.bytes_per_page for g, layout in zip(groups, layouts, strict=True))


def swapped(
    kernels: KernelSet, groups: Sequence[KVGroup], layouts: Sequence[KVLayout], b: Builder
) -> tuple[Swapped, ...]:
    """What it takes to swap pages of each group."""
    return tuple(
        Swapped(layout, kernels.bind("kv_swap", _need(group, b), layout=layout), group.num_layers)
        for group, layout in zip(groups, layouts, strict=True)
    )


def exchanged(
    kernels: KernelSet, groups: Sequence[KVGroup], layouts: Sequence[KVLayout], b: Builder
) -> tuple[Exchanged, ...]:
    """What it takes to bring pages of each group into the canonical form, and back."""
    sizes = page_bytes(groups, layouts)
    return tuple(
        Exchanged(kernels.bind("kv_export", _need(group, b)), kernels.bind("kv_import", _need(group, b)), size)
        for group, size in zip(groups, sizes, strict=True)
    )


def planes(
    device: Device, where: torch.device, layout: KVLayout, num_layers: int, num_pages: int, *, keep: bool
) -> list[Planes]:
    """The planes of each layer of a group; `keep`: as the device keeps them."""
    kept = device.keep if keep else lambda plane: plane
    shapes = layout.shapes(num_pages)
    dtypes = [TORCH_DTYPES[plane.dtype] for plane in layout.planes]
    return [
        tuple(kept(device.empty(shape, dtype, where)) for shape, dtype in zip(shapes, dtypes, strict=True))
        for _ in range(num_layers)
    ]


def stay_in_place(device: Device, where: torch.device) -> bool:
    """Whether a device that compiles keeps tensors as they are, so that others can copy pages of them."""
    tensor = device.empty((1,), torch.float32, where)
    return device.keep(tensor) is tensor


def _need(group: KVGroup, b: Builder) -> Need:
    return b.need(head_size=group.head_size, page_tokens=b.page_tokens)
