"""Sequences in a paged pool, and how attention over them is called: as the engine does it.

Every page and slot that no token of the step may read is left as the pool came: full of NaN. That goes for page 0,
for pages of nobody, for the rest of a sequence's last page, and for what lies before a window.

Legend: T tokens, padding included; S sequences, padding included; B pages in a block table, N entries that are
written; H query heads, Hkv key heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from conformance.draw import Draw
from conformance.kernels.pool import WRITE_TOKENS
from conformance.target import Bench
from core.engine.step_input import HostLengths
from core.kernels.dtypes import DTYPE_NAMES

Ints = npt.NDArray[np.int64]

EXTRA_PAGES = 3
"""Pages of nobody in the pool; and columns of a block table past the longest sequence."""

BOUND_SLACK = 3
"""By how much lengths on the host are too long where they are bounds."""


@dataclass(frozen=True)
class Pages:
    """Where sequences lie.

    table     [S, B]
    slots     [N], each once
    owner     [N], the sequence that an entry belongs to: the first one, where several share it
    position  [N], in that sequence
    """

    table: Ints
    slots: Ints
    owner: Ints
    position: Ints
    num_pages: int


def lay_pages(
    draw: Draw,
    query_lens: Sequence[int],
    kv_lens: Sequence[int],
    page: int,
    *,
    window: int | None = None,
    shared: int = 0,
    aliased: bool = False,
) -> Pages:
    """Sequences on shuffled pages.

    window    pages that nobody's window reaches are given back: null in the table
    shared    pages that all sequences have in common with the first
    aliased   the second page of a sequence is its first page again
    """
    counts = [-(-n // page) for n in kv_lens]
    num_pages = 1 + sum(counts) + EXTRA_PAGES
    free = iter(draw.permutation(num_pages - 1) + 1)
    table = np.zeros((len(kv_lens), max([1, *counts]) + EXTRA_PAGES), np.int64)
    owner, position = [], []
    for s, (queries, n) in enumerate(zip(query_lens, kv_lens, strict=True)):
        first = 0 if window is None else max(0, n - queries - window + 1)
        for number in range(first // page, counts[s]):
            table[s, number] = next(free)
        common = min(shared, (n - queries) // page)
        table[s, :common] = table[0, :common]
        if aliased and counts[s] > 2:
            table[s, 1] = table[s, 0]
        position.append(np.arange(first, n))
        owner.append(np.full(n - first, s))
    owners, positions = np.concatenate(owner), np.concatenate(position)
    slots = table[owners, positions // page] * page + positions % page
    once = np.sort(np.unique(slots, return_index=True)[1])
    return Pages(table, slots[once], owners[once], positions[once], num_pages)


@dataclass(frozen=True)
class Scene:
    """One step of one KV group.

    q            [T, H, D], padding tokens included
    k, v         [N, Hkv, D], what is written at
    slots        [N] int32
    table        [S, B] int32, padding sequences included
    query_lens   of each sequence, and
    kv_lens      its length, this step's tokens included; both 0 for padding sequences
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    slots: torch.Tensor
    table: torch.Tensor
    query_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    page: int
    num_pages: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    want_lse: bool = False

    @property
    def starts(self) -> tuple[int, ...]:
        """Of each sequence, its first token; then the number of real tokens."""
        return (0, *np.cumsum(self.query_lens).tolist())

    def host(self, exact: bool = True) -> HostLengths:
        """Lengths as the engine tells them: exact, or upper bounds."""
        queries, lens = np.array(self.query_lens, np.int32), np.array(self.kv_lens, np.int32)
        if exact:
            return HostLengths(queries, lens, exact=True)
        most = self.table.shape[1] * self.page
        slack = np.where(queries > 0, BOUND_SLACK, 0).astype(np.int32)
        return HostLengths(queries + slack, np.minimum(lens + slack, most), exact=False)


class Stage:
    """A scene on a device."""

    def __init__(self, scene: Scene, bench: Bench) -> None:
        self._scene, self._bench = scene, bench
        size, page = scene.k.shape[2], scene.page
        self._layout = bench.bind("kv_layout")(
            num_kv_heads=scene.k.shape[1], head_size=size, page_tokens=page, dtype=DTYPE_NAMES[scene.k.dtype]
        )
        self.planes = bench.planes(self._layout, scene.num_pages)
        write = bench.bind("kv_write", page_tokens=page)
        for first in range(0, len(scene.slots), WRITE_TOKENS):
            part = slice(first, first + WRITE_TOKENS)
            entries = (bench.put(name, x[part]) for name, x in (("k", scene.k), ("v", scene.v)))
            self.planes = write(*entries, self.planes, bench.put("slots", scene.slots[part]))
        starts = torch.tensor(scene.starts, dtype=torch.int32)
        lens = torch.tensor(scene.kv_lens, dtype=torch.int32)
        self._lengths = bench.put("query_starts", starts), bench.put("kv_lens", lens)
        self._table = bench.put("block_table", scene.table)

    def plan(self, host: HostLengths | None) -> Any:
        return self._plan(self._table, host)

    def plan_of_another_group(self) -> Any:
        """Of a group whose pages lie elsewhere: each group of a model has a plan, and all are made before a layer."""
        scene = self._scene
        elsewhere = torch.where(scene.table > 0, scene.num_pages - scene.table, 0).to(torch.int32)
        return self._plan(self._bench.put("table_of_another_group", elsewhere), scene.host())

    def _plan(self, table: torch.Tensor, host: HostLengths | None) -> Any:
        scene = self._scene
        plan = self._bench.bind("attn_plan", page_tokens=scene.page, window=scene.window)
        return plan(*self._lengths, table, num_tokens=len(scene.q), host=host)

    def attend(self, plan: Any, heads_beside: int = 0) -> list[torch.Tensor]:
        """o, and lse where it is wanted. `heads_beside`: other heads that lie in memory after those of a query."""
        scene = self._scene
        kernel = self._bench.bind(
            "attn_paged",
            scale=scene.scale,
            page_tokens=scene.page,
            window=scene.window,
            softcap=scene.softcap,
            want_lse=scene.want_lse,
        )
        num_heads = scene.q.shape[1]
        wide = torch.cat((scene.q, scene.q[:, :heads_beside]), 1) if heads_beside else scene.q
        got = kernel(self._bench.put("q", wide)[:, :num_heads], self.planes, plan)
        return [self._bench.get(x) for x in (got if scene.want_lse else (got,))]

    def stored(self) -> dict[str, torch.Tensor]:
        """Keys and values of every sequence as they are kept, [S, B, page, Hkv, D]; and how exactly, as declared."""
        k, v = (self._bench.get(x) for x in self._bench.bind("kv_gather")(self.planes, self._table))
        error = torch.tensor([self._layout.kv_error], dtype=torch.float64)
        return {"stored_k": k, "stored_v": v, "stored_error": error}
