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

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from core.engine.columns import FULL_SORT, Columns
from core.engine.decode_columns import DecodeColumns
from core.engine.extras import ExtrasPacker
from core.engine.rows import Ints, Rows
from core.engine.step import StepPlan
from core.engine.step_input import AheadInput, HostLengths, ShapeKey, StepInput, VerifyInput
from core.errors import DeviceError
from core.plugin.device import Device, Event
from core.plugin.facts import ShapePolicy

LEAST_BLOCKS = 16
"""Width of the narrowest block table of a step that is replayed."""

Words = TypeVar("Words", Ints, torch.Tensor)


class _Buffer(NamedTuple):
    """What a step of one shape takes of a set: by fields, as a whole, on the device, and as the step sees it there."""

    words: dict[str, Ints]
    host: torch.Tensor
    on_device: torch.Tensor
    input: StepInput


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
        max_logits: int,
        max_blocks: int,
        sets: int,
        vocab_size: int,
        num_drafts: int = 0,
        num_ahead: int = 0,
        keeps_first: bool = False,
        replayed_tokens: int = 0,
    ) -> None:
        """num_drafts    of an item, at most
        num_ahead     passes that foretell
        keeps_first   their first token of a text is that of the text, whatever the pass
        replayed_tokens   steps of up to so many tokens that all draw have few shapes; 0: none has
        """
        self._device = device
        self._num_drafts, self._num_ahead, self._keeps_first = num_drafts, num_ahead, keeps_first
        self._rows = rows
        self._page = page_tokens
        self._shapes = shapes
        self.replayed_tokens = replayed_tokens
        num_seqs = max_logits if shapes.seqs else max(max_seqs, replayed_tokens)  # as in `_key`
        largest = ShapeKey(
            _up(max_tokens, shapes.tokens, "tokens"), _up(num_seqs, shapes.seqs, "sequences"),
            _up(max_blocks, shapes.blocks, "blocks"), _up(max_logits, shapes.seqs, "sequences"), False, FULL_SORT,
        )  # fmt: skip
        self.max_logits = largest.logits
        words = sum(size for _, size in self._fields(largest))
        self._host = [device.host_empty((words,), torch.int32) for _ in range(sets)]
        self._words = [h.numpy() for h in self._host]
        self._on_device = device.empty((words,), torch.int32, where)
        self._copied = [Event() for _ in range(sets)]
        self._turn = 0
        self._extras = ExtrasPacker(
            device, where, rows, vocab_size, None if shapes.dynamic else max_blocks * page_tokens
        )
        self._largest = largest
        self._buffers: dict[tuple[int, ShapeKey], _Buffer] = {}

    def shape_keys(self) -> Iterator[ShapeKey]:
        """Every shape that a step can have, where the device takes certain sizes of everything; greedy ones only."""
        largest, shapes = self._largest, self._shapes
        if not (shapes.tokens and shapes.seqs and shapes.blocks):
            return
        for tokens in (t for t in shapes.tokens if t <= largest.tokens):
            for fewer, seqs in pairwise((0, *shapes.seqs)):
                if fewer < tokens and seqs <= largest.seqs:  # each sequence has a token
                    for blocks in (b for b in shapes.blocks if b <= largest.blocks):
                        yield ShapeKey(tokens, seqs, blocks, seqs, True, 1)

    def padding(self, key: ShapeKey, *, extras: bool = False) -> StepInput:
        """A step of this shape in which nobody takes part; with `extras` that ask for nothing."""
        return self._pack(Columns(StepPlan([], [], [], [], [], [], [], []), self._rows, self._page), key, extras)

    def pack(self, plan: StepPlan) -> StepInput:
        """Fill the next host buffer and start its copy; work launched from now on sees it."""
        few = self._shapes.dynamic and not self._num_ahead and DecodeColumns.fits(plan)
        batch = (DecodeColumns if few else Columns)(plan, self._rows, self._page)
        return self._pack(batch, self._key(batch), bool(plan.masked))

    def _pack(self, batch: Columns, key: ShapeKey, masked: bool) -> StepInput:
        turn = self._turn
        self._turn = (turn + 1) % len(self._host)
        self._copied[turn].synchronize()
        buffer = self._buffers.get((turn, key)) or self._cut(turn, key)
        batch.fill(buffer.words, key.seqs, key.blocks, self._num_ahead, self._keeps_first)
        verifies = self._num_drafts > 0 and (bool(batch.drafts) or not self._shapes.dynamic)
        if verifies:
            batch.fill_verify(buffer.words, self._num_drafts)
        self._copied[turn] = self._device.h2d(buffer.on_device, buffer.host)
        self._copied[turn].wait()
        extras = self._extras.pack(batch, key.logits, masked)
        host = HostLengths(_padded(batch.counts, key.seqs), _padded(batch.kv_lens, key.seqs), exact=True)
        verify = buffer.input.verify if verifies else None
        return replace(buffer.input, host=host, extras=extras, verify=verify)

    def _cut(self, turn: int, key: ShapeKey) -> _Buffer:
        """The parts of the buffers for a shape; kept for those that come again and again."""
        num_groups = len(self._rows.tables)
        fields = self._fields(key)
        words = sum(size for _, size in fields)
        on_device = self._on_device[:words]
        buffer = _Buffer(
            _views(self._words[turn], fields),
            self._host[turn][:words],
            on_device,
            _step_input(_views(on_device, fields), key, num_groups),
        )
        if key.all_draw(self.replayed_tokens):
            self._buffers[turn, key] = buffer
        return buffer

    def _fields(self, key: ShapeKey) -> list[tuple[str, int]]:
        return _fields(key, len(self._rows.tables), self._num_drafts, self._num_ahead)

    def grammar_mask(self, draws: list[int], words: bytes, key: ShapeKey) -> torch.Tensor:
        """The masks of a plan's masked draws on the device, from the message that followed the plan."""
        return self._extras.grammar_mask(draws, words, key.logits)

    @property
    def most_logprobs(self) -> int:
        """Likeliest tokens that are reported where steps are compiled."""
        return self._extras.most_logprobs

    def _key(self, batch: Columns) -> ShapeKey:
        num_logits = max(1, len(batch.logit_rows))
        top_k_max = 1 if batch.greedy else batch.top_k_max
        if self._shapes.dynamic:
            sizes = batch.num_tokens, len(batch.rows), batch.num_blocks, num_logits
            key = ShapeKey(*sizes, batch.greedy, top_k_max)
            return self.replayed_key(key) if key.all_draw(self.replayed_tokens) else key
        shapes = self._shapes
        # Where shapes are compiled, few are better than small ones: as many logit rows as sequences, and full sorts.
        num_seqs = max(len(batch.rows), num_logits if shapes.seqs else 0)
        return ShapeKey(
            _up(batch.num_tokens, shapes.tokens, "tokens"),
            _up(num_seqs, shapes.seqs, "sequences"),
            _up(batch.num_blocks, shapes.blocks, "blocks"),
            _up(num_seqs if shapes.seqs else num_logits, shapes.seqs, "sequences"),
            batch.greedy,
            1 if batch.greedy else FULL_SORT,
        )

    def replayed_key(self, key: ShapeKey) -> ShapeKey:
        """As many sequences as tokens, and block tables of one of few widths: LEAST_BLOCKS, doubled while too few."""
        width = LEAST_BLOCKS
        while width < key.blocks:
            width *= 2
        return key._replace(seqs=key.tokens, blocks=min(width, self._largest.blocks))


def _up(size: int, buckets: Sequence[int], what: str) -> int:
    """The smallest bucket that holds `size`; `size` itself where there are none."""
    if not buckets:
        return size
    for bucket in buckets:
        if size <= bucket:
            return bucket
    raise DeviceError(f"{size} {what} in a step: the device takes at most {buckets[-1]}")


def _fields(key: ShapeKey, num_groups: int, num_drafts: int, num_ahead: int) -> list[tuple[str, int]]:
    """Name and size in words of each part of the buffer, in order."""
    T, S, B, L = key.tokens, key.seqs, key.blocks, key.logits
    # What drawing reads comes first: its place then follows from the number of logit rows alone.
    parts = [("output_rows", L), ("counter", L), ("top_k", L), ("seed", 2 * L), ("temperature", L), ("top_p", L)]
    if num_drafts:
        parts += [("kept_rows", L), ("draft_ids", L * num_drafts), ("drawn_rows", L * (num_drafts + 1))]
    parts += [("logit_rows", L), ("query_starts", S + 1), ("kv_lens", S)]
    parts += [("token_ids", T), ("positions", T), ("source_rows", T)]
    for g in range(num_groups):
        parts += [(f"slots{g}", T), (f"block_table{g}", S * B)]
    if num_ahead:
        parts += [("ahead_rows", T), ("shift_rows", T), *((f"known{k}", T) for k in range(num_ahead))]
    return parts


def _views(words: Words, fields: list[tuple[str, int]]) -> dict[str, Words]:
    views, start = {}, 0
    for name, size in fields:
        views[name] = words[start : start + size]
        start += size
    return views


def _step_input(views: dict[str, torch.Tensor], key: ShapeKey, num_groups: int) -> StepInput:
    """Without what is of one step alone."""
    known = tuple(views.pop(name) for name in [name for name in views if name.startswith("known")])
    ahead = AheadInput(known, views.pop("shift_rows"), views.pop("ahead_rows")) if known else None
    found = [views.pop(name).view(key.logits, -1) for name in ("draft_ids", "drawn_rows", "kept_rows") if name in views]
    verify = VerifyInput(found[0], found[1], found[2].view(-1)) if found else None
    slots = tuple(views.pop(f"slots{g}") for g in range(num_groups))
    tables = tuple(views.pop(f"block_table{g}").view(key.seqs, key.blocks) for g in range(num_groups))
    views["seed"] = views["seed"].view(key.logits, 2)
    for name in ("temperature", "top_p"):
        views[name] = views[name].view(torch.float32)
    return StepInput(
        key=key, slots=slots, block_tables=tables, host=None, extras=None, ahead=ahead, verify=verify, **views
    )


def _padded(values: Ints, size: int) -> Ints:
    if len(values) == size:
        return values
    out = np.zeros(size, np.int32)
    out[: len(values)] = values
    return out
