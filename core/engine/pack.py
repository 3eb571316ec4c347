"""From a plan to tensors: one ragged batch, packed by the host into one buffer and copied to the device once.

Design. All inputs of a step are 32-bit words, so they lie one after another in a single host buffer; its device copy is
cut into views. Offsets follow from the shape key alone, so a compiled step finds its inputs at the same addresses each
time. There are pipeline_depth + 1 host buffers, because the host packs a step while the one before it runs; one device
buffer is enough, because a copy to it starts after the steps launched before.
Packing is numpy over whole columns; only sequences with new prompt tokens are visited one by one. The brute-force twin
(tests/core/engine/test_pack.py) fills the same fields with plain loops.

Legend: T tokens, S sequences, L logit rows, B pages in a block table, g KV group, R rows of last_ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from core.engine.extras import Extras, ExtrasPacker
from core.engine.rows import Ints, Rows
from core.engine.step import StepPlan
from core.errors import DeviceError
from core.plugin.device import Device, Event
from core.plugin.facts import ShapePolicy

FULL_SORT = 0


class ShapeKey(NamedTuple):
    """Everything that fixes the shapes and the path of a step."""

    tokens: int
    seqs: int
    blocks: int
    logits: int
    greedy: bool
    top_k_max: int


@dataclass(frozen=True)
class HostLengths:
    """Lengths as the host knows them: exact, or upper bounds."""

    query_lens: Ints
    kv_lens: Ints
    exact: bool


@dataclass(frozen=True)
class StepInput:
    """Tensors of a step on the device; int32 unless said.

    query_starts_S1 is padded with the real token count, so padding tokens belong to no sequence; other padding is 0,
    -1 for slots, and 1 for top_p. Row 0 of last_ids and page 0 are null.
    """

    key: ShapeKey
    token_ids: torch.Tensor  # T
    positions: torch.Tensor  # T
    source_rows: torch.Tensor  # T: row of last_ids to take the id from; 0: token_ids has it
    query_starts: torch.Tensor  # S + 1
    kv_lens: torch.Tensor  # S
    logit_rows: torch.Tensor  # L: token whose logits are wanted
    output_rows: torch.Tensor  # L: row of last_ids for the id drawn
    counter: torch.Tensor  # L: position of the id drawn
    top_k: torch.Tensor  # L
    seed: torch.Tensor  # L, 2
    temperature: torch.Tensor  # L float32
    top_p: torch.Tensor  # L float32
    slots: tuple[torch.Tensor, ...]  # per g: T
    block_tables: tuple[torch.Tensor, ...]  # per g: S, B
    host: HostLengths
    extras: Extras | None  # what only some requests ask of their draws


class Packer:
    """Input buffers: `sets` of them on the host, filled in turn, and one on the device."""

    def __init__(
        self,
        device: Device,
        where: torch.device,
        rows: Rows,
        *,
        page_tokens: int,
        shapes: ShapePolicy,
        max_tokens: int,
        max_seqs: int,
        max_blocks: int,
        sets: int,
        vocab_size: int,
    ) -> None:
        self._device = device
        self._rows = rows
        self._page = page_tokens
        self._shapes = shapes
        largest = ShapeKey(
            _up(max_tokens, shapes.tokens, "tokens"), _up(max_seqs, shapes.seqs, "sequences"),
            _up(max_blocks, shapes.blocks, "blocks"), _up(max_seqs, shapes.seqs, "sequences"), False, FULL_SORT,
        )  # fmt: skip
        self.max_logits = largest.logits
        words = sum(size for _, size in _fields(largest, len(rows.tables)))
        self._host = [device.host_empty((words,), torch.int32) for _ in range(sets)]
        self._words = [h.numpy() for h in self._host]
        self._on_device = device.empty((words,), torch.int32, where)
        self._copied = [Event() for _ in range(sets)]
        self._turn = 0
        self._extras = ExtrasPacker(device, where, rows, vocab_size)

    def pack(self, plan: StepPlan) -> StepInput:
        """Fill the next host buffer and start its copy; work launched from now on sees it."""
        turn = self._turn
        self._turn = (turn + 1) % len(self._host)
        self._copied[turn].synchronize()
        batch = _Batch(plan, self._rows, self._page)
        key = self._key(batch)
        words = sum(size for _, size in _fields(key, len(self._rows.tables)))
        batch.fill(_views(self._words[turn], key, len(self._rows.tables)), key)
        self._copied[turn] = self._device.h2d(self._on_device[:words], self._host[turn][:words])
        self._copied[turn].wait()
        extras = self._extras.pack(batch.logit_rows, batch.counters, batch.targets, key.logits)
        return _step_input(self._on_device, key, len(self._rows.tables), batch, extras)

    def grammar_mask(self, plan: StepPlan, words: bytes, key: ShapeKey) -> torch.Tensor:
        """The masks of a plan's draws on the device, from the message that followed the plan."""
        return self._extras.grammar_mask(plan.masked, words, key.logits)

    def _key(self, batch: _Batch) -> ShapeKey:
        shapes = self._shapes
        return ShapeKey(
            _up(batch.num_tokens, shapes.tokens, "tokens"),
            _up(len(batch.rows), shapes.seqs, "sequences"),
            _up(batch.num_blocks, shapes.blocks, "blocks"),
            _up(max(1, len(batch.logit_rows)), shapes.seqs, "sequences"),
            batch.greedy,
            1 if batch.greedy else batch.top_k_max,
        )


def _up(size: int, buckets: Sequence[int], what: str) -> int:
    """The smallest bucket that holds `size`; `size` itself where there are none."""
    if not buckets:
        return size
    for bucket in buckets:
        if size <= bucket:
            return bucket
    raise DeviceError(f"{size} {what} in a step: the device takes at most {buckets[-1]}")


def _fields(key: ShapeKey, num_groups: int) -> list[tuple[str, int]]:
    """Name and size in words of each part of the buffer, in order."""
    T, S, B, L = key.tokens, key.seqs, key.blocks, key.logits
    parts = [("token_ids", T), ("positions", T), ("source_rows", T), ("query_starts", S + 1), ("kv_lens", S)]
    parts += [("logit_rows", L), ("output_rows", L), ("counter", L), ("top_k", L), ("seed", 2 * L)]
    parts += [("temperature", L), ("top_p", L)]
    for g in range(num_groups):
        parts += [(f"slots{g}", T), (f"block_table{g}", S * B)]
    return parts


def _views(words: Ints, key: ShapeKey, num_groups: int) -> dict[str, Ints]:
    views, start = {}, 0
    for name, size in _fields(key, num_groups):
        views[name] = words[start : start + size]
        start += size
    return views


def _step_input(words: torch.Tensor, key: ShapeKey, num_groups: int, batch: _Batch, extras: Extras | None) -> StepInput:
    views, start = {}, 0
    for name, size in _fields(key, num_groups):
        views[name] = words[start : start + size]
        start += size
    slots = tuple(views.pop(f"slots{g}") for g in range(num_groups))
    tables = tuple(views.pop(f"block_table{g}").view(key.seqs, key.blocks) for g in range(num_groups))
    views["seed"] = views["seed"].view(key.logits, 2)
    for name in ("temperature", "top_p"):
        views[name] = views[name].view(torch.float32)
    host = HostLengths(_padded(batch.counts, key.seqs), _padded(batch.kv_lens, key.seqs), exact=True)
    return StepInput(key=key, slots=slots, block_tables=tables, host=host, extras=extras, **views)


def _padded(values: Ints, size: int) -> Ints:
    out = np.zeros(size, np.int32)
    out[: len(values)] = values
    return out


class _Batch:
    """The columns of one plan."""

    def __init__(self, plan: StepPlan, rows: Rows, page_tokens: int) -> None:
        self._of, self._page = rows, page_tokens
        self.rows = np.array(plan.rows, np.int32)
        self.starts = np.array(plan.starts, np.int32)
        self.counts = np.array(plan.counts, np.int32)
        self.samples = np.array(plan.samples, bool)
        self.kv_lens = self.starts + self.counts
        self.query_starts = np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int32)
        self.num_tokens = int(self.query_starts[-1])
        self.num_blocks = -(-int(self.kv_lens.max()) // page_tokens)
        sampled = np.flatnonzero(self.samples)
        # Logit rows: first those that are drawn from; then those that score a prompt, with row 0's parameters.
        self.logit_tokens = self.query_starts[1:][sampled] - 1
        self.logit_rows = self.rows[sampled]
        self.counters = self.kv_lens[sampled]
        self.targets = np.zeros(len(sampled), np.int32)
        if any(plan.scores):
            self._add_scores([i for i, scores in enumerate(plan.scores) if scores])
        self.greedy = not bool(rows.temperature[self.logit_rows].any())

    def _add_scores(self, items: list[int]) -> None:
        """Logit rows for prompt tokens: what follows each, as far as that is the prompt."""
        for i in items:
            num = self.counts[i] - self.samples[i]
            tokens = np.arange(num, dtype=np.int32) + self.query_starts[i]
            zeros = np.zeros(num, np.int32)
            following = self._of.ids[self.rows[i]][self.starts[i] + 1 : self.starts[i] + 1 + num]
            self.logit_tokens = np.concatenate([self.logit_tokens, tokens])
            self.logit_rows = np.concatenate([self.logit_rows, zeros])
            self.counters = np.concatenate([self.counters, zeros])
            self.targets = np.concatenate([self.targets, following])

    @property
    def top_k_max(self) -> int:
        """Bound on top_k of the rows that draw among several; FULL_SORT where one limits them by top_p alone."""
        rows = self.logit_rows[self._of.temperature[self.logit_rows] > 0]
        top_k = self._of.top_k[rows]
        by_p_alone = (self._of.top_p[rows] < 1) & (top_k == 0)
        if by_p_alone.any():
            return FULL_SORT
        return 1 << max(0, int(top_k.max(initial=1)) - 1).bit_length()

    def fill(self, out: dict[str, Ints], key: ShapeKey) -> None:
        """Write every field, padding included."""
        rows, num, page = self._of, self.num_tokens, self._page
        spread = np.repeat(self.starts - self.query_starts[:-1], self.counts)
        positions = np.arange(num, dtype=np.int32) + spread
        row_T = np.repeat(self.rows, self.counts)
        _put(out["positions"], positions)
        _put(out["source_rows"], np.where(positions >= rows.num_given[row_T], row_T, 0))
        self._fill_ids(out["token_ids"])
        _put(out["query_starts"], self.query_starts, pad=num)
        _put(out["kv_lens"], self.kv_lens)
        _put(out["logit_rows"], self.logit_tokens)
        _put(out["output_rows"], self.logit_rows)
        _put(out["counter"], self.counters)
        _put(out["top_k"], rows.top_k[self.logit_rows])
        _put(out["seed"], rows.seed[self.logit_rows].reshape(-1))
        _put(out["temperature"].view(np.float32), rows.temperature[self.logit_rows])
        _put(out["top_p"].view(np.float32), rows.top_p[self.logit_rows], pad=1)
        for g, table in enumerate(rows.tables):
            _put(out[f"slots{g}"], table[row_T, positions // page] * page + positions % page, pad=-1)
            blocks = out[f"block_table{g}"].reshape(key.seqs, key.blocks)
            width = min(key.blocks, table.shape[1])  # a bucket may be wider than the longest sequence
            blocks[: len(self.rows), :width] = table[self.rows, :width]
            blocks[: len(self.rows), width:] = 0
            blocks[len(self.rows) :] = 0

    def _fill_ids(self, out: Ints) -> None:
        out[:] = 0
        for i in np.flatnonzero(self.starts < self._of.num_given[self.rows]):
            ids = self._of.ids[self.rows[i]][self.starts[i] : self.kv_lens[i]]
            out[self.query_starts[i] : self.query_starts[i] + len(ids)] = ids


def _put(out: npt.NDArray[np.generic], values: npt.NDArray[np.generic], pad: int = 0) -> None:
    out[: len(values)] = values
    out[len(values) :] = pad
