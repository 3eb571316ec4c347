"""Sequences of queries and keys as scenes of the paged pool, in whatever sizes a device takes.

Heads are padded with zeros to the size that the kernels were asked for; pages are filled backwards.
Tokens that see nothing are padding tokens of the step, whose result is 0.

Legend: N tokens that a case has, H query heads, Hkv key heads, D and Dv sizes of key and value heads, L keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from conformance.kernels.attention_scene import Scene, Stage
from conformance.onnx_cases.stand import Stand
from core.kernels.dtypes import DTYPE_NAMES
from core.plugin.facts import Need

_HEAD_SIZES = (0, 16, 32, 64, 80, 96, 128, 192, 256)
"""Tried from the case's own on."""

_PAGES = (4, 8, 16, 32, 64, 128, 256)
"""Tokens in a page, tried in this order: small ones first, as sequences are short."""


@dataclass(frozen=True)
class Sequence:
    """tokens   of the case, that are its last ones
    k, v        [L, Hkv, D], [L, Hkv, Dv]: all that the last token sees, its own included
    """

    tokens: list[int]
    k: torch.Tensor
    v: torch.Tensor


@dataclass(frozen=True)
class Step:
    """q [N, H, D]; tokens of no sequence see nothing."""

    q: torch.Tensor
    sequences: list[Sequence]
    scale: float
    window: int | None = None
    softcap: float | None = None

    def needs(self) -> Iterator[Need]:
        size = max(self.q.shape[2], *(max(s.k.shape[2], s.v.shape[2]) for s in self.sequences))
        return paged_needs(self.q.dtype, size, max(1, len(self.sequences)), len(self.q))


def paged_needs(dtype: torch.dtype, size: int, num_seqs: int, num_tokens: int) -> Iterator[Need]:
    """For heads of `size`, or padded; any page."""
    for padded in sorted({max(size, s) for s in _HEAD_SIZES}):
        for page in _PAGES:
            yield Need(
                dtype=DTYPE_NAMES.get(dtype),
                head_size=padded,
                page_tokens=page,
                max_seqs=num_seqs,
                max_tokens=num_tokens,
            )


def pages_of(lens: list[int], page: int) -> tuple[torch.Tensor, int]:
    """A block table [S, B] for sequences of these lengths, and how many pages there are."""
    counts = [-(-n // page) for n in lens]
    table = torch.zeros((len(lens), max(1, *counts)), dtype=torch.int32)
    page_id = 1
    for s in reversed(range(len(lens))):
        table[s, : counts[s]] = torch.arange(page_id, page_id + counts[s]).flip(0)
        page_id += counts[s]
    return table, page_id


def slots_of(table: torch.Tensor, page: int) -> torch.Tensor:
    """Where each position of each sequence lies: [S, B * page] int32."""
    return (table[:, :, None] * page + torch.arange(page, dtype=torch.int32)).flatten(1)


def padded(x: torch.Tensor, stand: Stand) -> torch.Tensor:
    """The last axis filled up with zeros to the head size that was asked for."""
    assert stand.need.head_size is not None
    return F.pad(x, (0, stand.need.head_size - x.shape[-1]))


def attend(step: Step, stand: Stand) -> torch.Tensor:
    """o [N, H, Dv]."""
    page = stand.need.page_tokens
    assert page is not None
    lens = [len(s.k) for s in step.sequences]
    table, num_pages = pages_of(lens, page)
    slots = slots_of(table, page)
    seen = [t for s in step.sequences for t in s.tokens]
    order = torch.tensor(seen + sorted(set(range(len(step.q))) - set(seen)))
    scene = Scene(
        q=padded(step.q[order], stand),
        k=padded(torch.cat([s.k for s in step.sequences]), stand),
        v=padded(torch.cat([s.v for s in step.sequences]), stand),
        slots=torch.cat([slots[s, :n] for s, n in enumerate(lens)]),
        table=table,
        query_lens=tuple(len(s.tokens) for s in step.sequences),
        kv_lens=tuple(lens),
        page=page,
        num_pages=num_pages,
        scale=step.scale,
        window=step.window,
        softcap=step.softcap,
    )
    stage = Stage(scene, stand)
    (found,) = stage.attend(stage.plan(scene.host()))
    o = torch.empty_like(found)
    o[order] = found
    return o[:, :, : step.sequences[0].v.shape[2]]


def append(
    stand: Stand,
    caches: tuple[torch.Tensor, torch.Tensor],
    added: tuple[torch.Tensor, torch.Tensor],
    at: list[list[int]],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [S, L, Hkv, .] of a pool that holds `caches`, once `added` [S, n, Hkv, .] is written at
    positions `at` [S][n]. Positions past the caches make them longer.
    """
    page, (num_seqs, cached, num_heads) = stand.need.page_tokens, caches[0].shape[:3]
    assert page is not None
    length = max([cached, *(p + 1 for places in at for p in places)])
    table, num_pages = pages_of([length] * num_seqs, page)
    slots = slots_of(table, page)
    layout = stand.bind("kv_layout")(
        num_kv_heads=num_heads,
        head_size=stand.need.head_size,
        page_tokens=page,
        dtype=DTYPE_NAMES[caches[0].dtype],
    )
    planes = stand.planes(layout, num_pages, "cache")
    write = stand.bind("kv_write", page_tokens=page)
    places = torch.stack([slots[s, p] for s, p in enumerate(at)])
    for (k, v), where in ((caches, slots[:, :cached]), (added, places)):
        entries = (stand.put(name, padded(x, stand).flatten(0, 1)) for name, x in (("k", k), ("v", v)))
        planes = write(*entries, planes, stand.put("slots", where.flatten()))
    found = stand.bind("kv_gather")(planes, stand.put("pages", table))
    k, v = (stand.get(x).flatten(1, 2)[:, :length] for x in found)
    return k[..., : caches[0].shape[3]], v[..., : caches[1].shape[3]]
