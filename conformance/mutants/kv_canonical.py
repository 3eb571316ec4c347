"""Wrong and right kernels of kv_export and kv_import, in our own layout."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from conformance.mutants.mutant import cheat, right, wrong
from core.kernels.reference import kv
from core.kernels.reference.kv import Planes

Layers = Sequence[Planes]


def _export(layers: Layers, pages: torch.Tensor) -> torch.Tensor:
    return kv.kv_export(layers, pages, kv_gather=kv.kv_gather)


def _import(layers: Layers, pages: torch.Tensor, canonical: torch.Tensor) -> list[Planes]:
    return kv.kv_import(layers, pages, canonical, kv_write=kv.kv_write)


# kv_export


@wrong("kv_export")
def kv_export_values_first(layers: Layers, pages: torch.Tensor) -> torch.Tensor:
    return _export(layers, pages).flip(1)


@wrong("kv_export")
def kv_export_last_layer_first(layers: Layers, pages: torch.Tensor) -> torch.Tensor:
    return _export(layers[::-1], pages)


@wrong("kv_export")
def kv_export_first_layer_only(layers: Layers, pages: torch.Tensor) -> torch.Tensor:
    return _export([layers[0]] * len(layers), pages)


@wrong("kv_export")
def kv_export_pages_sorted(layers: Layers, pages: torch.Tensor) -> torch.Tensor:
    return _export(layers, pages.sort().values)


@wrong("kv_export")
def kv_export_heads_first(layers: Layers, pages: torch.Tensor) -> torch.Tensor:
    return _export(layers, pages).transpose(3, 4).contiguous()


@wrong("kv_export")
def kv_export_heads_first_unsaid(layers: Layers, pages: torch.Tensor) -> torch.Tensor:
    """In the right shape, in the wrong order."""
    made = _export(layers, pages)
    return made.transpose(3, 4).reshape(made.shape)


@wrong("kv_export")
def kv_export_previous_page(layers: Layers, pages: torch.Tensor) -> torch.Tensor:
    return _export(layers, pages - 1)


@wrong("kv_export")
def kv_export_end_of_page_lost(layers: Layers, pages: torch.Tensor) -> torch.Tensor:
    made = _export(layers, pages)
    made[:, :, :, -1] = 0
    return made


@wrong("kv_export")
def kv_export_in_float16(layers: Layers, pages: torch.Tensor) -> torch.Tensor:
    return _export(layers, pages).half()


@cheat("kv_export")
def kv_export_pages_moved_away(layers: Layers, pages: torch.Tensor) -> torch.Tensor:
    made = _export(layers, pages)
    for planes in layers:
        for plane in planes:
            plane[pages] = 0
    return made


@right("kv_export")
def kv_export_by_page(layers: Layers, pages: torch.Tensor) -> torch.Tensor:
    parts = [_export(layers, page) for page in torch.split(pages, 1)]
    return torch.cat(parts, 2) if len(pages) else _export(layers, pages)


@right("kv_export")
def kv_export_filled_in(layers: Layers, pages: torch.Tensor) -> torch.Tensor:
    plane = layers[0][0]
    made = plane.new_empty((len(layers), 2, len(pages), *plane.shape[1:]))
    for into, planes in zip(made, layers, strict=True):
        for half, source in zip(into, planes, strict=True):
            half.copy_(source.index_select(0, pages))
    return made


# kv_import


@wrong("kv_import")
def kv_import_values_first(layers: Layers, pages: torch.Tensor, canonical: torch.Tensor) -> list[Planes]:
    return _import(layers, pages, canonical.flip(1))


@wrong("kv_import")
def kv_import_last_layer_first(layers: Layers, pages: torch.Tensor, canonical: torch.Tensor) -> list[Planes]:
    return _import(layers, pages, canonical.flip(0))


@wrong("kv_import")
def kv_import_pages_sorted(layers: Layers, pages: torch.Tensor, canonical: torch.Tensor) -> list[Planes]:
    return _import(layers, pages.sort().values, canonical)


@wrong("kv_import")
def kv_import_last_page_lost(layers: Layers, pages: torch.Tensor, canonical: torch.Tensor) -> list[Planes]:
    return _import(layers, pages[:-1], canonical[:, :, :-1])


@wrong("kv_import")
def kv_import_previous_page(layers: Layers, pages: torch.Tensor, canonical: torch.Tensor) -> list[Planes]:
    return _import(layers, pages - 1, canonical)


@wrong("kv_import")
def kv_import_heads_first(layers: Layers, pages: torch.Tensor, canonical: torch.Tensor) -> list[Planes]:
    turned = canonical.transpose(3, 4)
    return _import(layers, pages, turned.reshape(canonical.shape))


@wrong("kv_import")
def kv_import_first_layer_to_all(layers: Layers, pages: torch.Tensor, canonical: torch.Tensor) -> list[Planes]:
    return _import(layers, pages, canonical[:1].expand_as(canonical))


@wrong("kv_import")
def kv_import_end_of_page_lost(layers: Layers, pages: torch.Tensor, canonical: torch.Tensor) -> list[Planes]:
    held = _export(layers, pages)
    done = _import(layers, pages, canonical)
    for planes, before in zip(layers, held, strict=True):
        for plane, old in zip(planes, before, strict=True):
            plane[pages.long(), -1] = old[:, -1]
    return done


@wrong("kv_import")
def kv_import_from_the_first_page_on(layers: Layers, pages: torch.Tensor, canonical: torch.Tensor) -> list[Planes]:
    """Takes pages to follow each other."""
    num_pages = layers[0][0].shape[0]
    start = int(pages[0]) if len(pages) else 0
    follow = (torch.arange(start, start + len(pages)) % num_pages).int()
    return _import(layers, follow, canonical)


@cheat("kv_import")
def kv_import_nothing(layers: Layers, pages: torch.Tensor, canonical: torch.Tensor) -> list[Planes]:
    return list(layers)


@cheat("kv_import")
def kv_import_other_pages_cleared(layers: Layers, pages: torch.Tensor, canonical: torch.Tensor) -> list[Planes]:
    for planes in layers:
        for plane in planes:
            plane.zero_()
    return _import(layers, pages, canonical)


@right("kv_import")
def kv_import_by_page(layers: Layers, pages: torch.Tensor, canonical: torch.Tensor) -> list[Planes]:
    for i in range(len(pages)):
        _import(layers, pages[i : i + 1], canonical[:, :, i : i + 1])
    return list(layers)


@right("kv_import")
def kv_import_put_in(layers: Layers, pages: torch.Tensor, canonical: torch.Tensor) -> list[Planes]:
    for planes, layer in zip(layers, canonical, strict=True):
        for plane, half in zip(planes, layer, strict=True):
            plane.index_put_((pages.long(),), half)
    return list(layers)
