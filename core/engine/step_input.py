"""What a step reads: its tensors on the device, and what fixes their shapes.

Legend: T tokens, S sequences, L logit rows, B pages in a block table, g KV group, R rows of last_ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from core.engine.extras import Extras
from core.engine.rows import Ints


class ShapeKey(NamedTuple):
    """Everything that fixes the shapes and the path of a step."""

    tokens: int
    seqs: int
    blocks: int
    logits: int
    greedy: bool
    top_k_max: int

    def all_draw(self, most: int) -> bool:
        """Whether it is of up to `most` tokens, and each of them draws: of decoding alone, drafts included."""
        return self.tokens == self.logits <= most


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
