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
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from core.engine.columns import FULL_SORT, Columns
from core.engine.extras import Extras, ExtrasPacker
from core.engine.rows import Ints, Rows
from core.engine.step import StepPlan
from core.errors import DeviceError
from core.plugin.device import Device, Event
from core.plugin.facts import ShapePolicy

LEAST_BLOCKS = 16
"""Width of the narrowest block table of a step that is replayed."""

Words = TypeVar("Words", Ints, torch.Tensor)


class ShapeKey(NamedTuple):
    """Everything that fixes the shapes and the path of a step."""

    tokens: int
    seqs: int
    blocks: int
    logits: int
    greedy: bool
    top_k_max: int

    def is_decode(self, most: int) -> bool:
        """Whether it is of up to `most` sequences, each with one token and one draw."""
        return self.tokens == self.seqs == self.logits <= most


@dataclass(frozen=True)
class HostLengths:
    """Lengths as the host knows them: exact, or upper bounds."""

    query_lens: Ints
    kv_lens: Ints
    exact: bool


@dataclass(frozen=True)
class VerifyInput:
    """What tells which drafts were right; int32. There is a row for each item that draws, K is the most drafts."""

    draft_ids: torch.Tensor  # L, K: -1 pads
    drawn_rows: torch.Tensor  # L, K + 1: row of last_ids for each id drawn; 0 pads
    kept_rows: torch.Tensor  # L: row for the last id that counts


@dataclass(frozen=True)
class DrawInput:
    """What the drawing half of a step reads beside logits: its shapes follow from the number of logit rows alone."""

    greedy: bool
    top_k_max: int
    output_rows: torch.Tensor
    counter: torch.Tensor
    top_k: torch.Tensor
    seed: torch.Tensor
    temperature: torch.Tensor
    top_p: torch.Tensor
    extras: Extras | None
    verify: VerifyInput | None


@dataclass(frozen=True)
class AheadInput:
    """Where pass k finds the id k tokens after each token; all int32 of T.

    known   per pass: the id, where a chunk of a prompt ends, or where the first token of a text stays in its place
    shift   the next token of the same sequence: the id is what the pass before had there; 0: it is not
    rows    row of the table of ids drawn, or for later passes of those that the pass before foretold; 0: neither
    """

    known: tuple[torch.Tensor, ...]
    shift: torch.Tensor
    rows: torch.Tensor


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
    output_rows: torch.Tensor  # L: row of last_ids for the id drawn: with drafts, one past those of sequences
    counter: torch.Tensor  # L: position of the id drawn
    top_k: torch.Tensor  # L
    seed: torch.Tensor  # L, 2
    temperature: torch.Tensor  # L float32
    top_p: torch.Tensor  # L float32
    slots: tuple[torch.Tensor, ...]  # per g: T
    block_tables: tuple[torch.Tensor, ...]  # per g: S, B
    host: HostLengths | None  # None for a compiled step: it is not of one step alone
    extras: Extras | None  # what only some requests ask of their draws
    ahead: AheadInput | None  # for what foretells
    verify: VerifyInput | None  # for drafts

    @property
    def draws(self) -> DrawInput:
        """The part for drawing."""
        return DrawInput(
            self.key.greedy, self.key.top_k_max, self.output_rows, self.counter, self.top_k, self.seed,
            self.temperature, self.top_p, self.extras, self.verify,
        )  # fmt: skip


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
        replayed_seqs: int = 0,
    ) -> None:
        """num_drafts    of an item, at most
        num_ahead     passes that foretell
        replayed_seqs steps of up to so many sequences with one token each have few widths of block tables
        keeps_first   their first token of a text is that of the text, whatever the pass
        """
        self._device = device
        self._num_drafts, self._num_ahead, self._keeps_first = num_drafts, num_ahead, keeps_first
        self._rows = rows
        self._page = page_tokens
        self._shapes = shapes
        self._replayed_seqs = replayed_seqs
        num_seqs = max_logits if shapes.seqs else max_seqs  # as in `_key`
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
        batch = Columns(plan, self._rows, self._page)
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
        if key.is_decode(self._replayed_seqs):
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
        shapes, num_logits = self._shapes, max(1, len(batch.logit_rows))
        # Where shapes are compiled, few are better than small ones: as many logit rows as sequences, and full sorts.
        num_seqs = max(len(batch.rows), num_logits if shapes.seqs else 0)
        top_k_max = batch.top_k_max if shapes.dynamic else FULL_SORT
        key = ShapeKey(
            _up(batch.num_tokens, shapes.tokens, "tokens"),
            _up(num_seqs, shapes.seqs, "sequences"),
            _up(batch.num_blocks, shapes.blocks, "blocks"),
            _up(num_seqs if shapes.seqs else num_logits, shapes.seqs, "sequences"),
            batch.greedy,
            1 if batch.greedy else top_k_max,
        )
        return self.decode_key(key) if key.is_decode(self._replayed_seqs) else key

    def decode_key(self, key: ShapeKey) -> ShapeKey:
        """With block tables of one of few widths: LEAST_BLOCKS, doubled as often as it takes."""
        width = LEAST_BLOCKS
        while width < key.blocks:
            width *= 2
        return key._replace(blocks=min(width, self._largest.blocks))


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
    out = np.zeros(size, np.int32)
    out[: len(values)] = values
    return out
