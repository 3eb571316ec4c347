"""Steps made by hand: a runner is fed texts whose every token is known, in any order and any pieces.

What a scheduler does is done here in its simplest form, so that cases decide which token is computed in which step,
beside what, and in which pages. Pages are handed out in a drawn order, so they lie scattered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec
import numpy as np
import torch

from core.config import EngineConfig
from core.engine.build import assemble
from core.engine.load_runner import open_runner
from core.engine.step import NewSequence, StepPlan
from core.kernels.bind import Tap
from core.plan import Plan
from core.request import Request


class Wanted(Enum):
    """Which logits of a piece: scored ones run as a prompt with log-probabilities does, drawn ones as any step."""

    NONE = 0
    LAST = 1
    ALL = 2


@dataclass
class Text:
    """A text under way. `start`: tokens that are computed."""

    row: int
    ids: list[int]
    pages: list[int]
    start: int = 0
    is_new: bool = True


@dataclass
class Piece:
    """The next `num` tokens of a text."""

    text: Text
    num: int
    wanted: Wanted = Wanted.ALL


@dataclass
class Forced:
    """A runner on the thread that calls, with room for `num` texts of `length` tokens.

    eager   steps run as they are, also on a device that compiles
    """

    config: EngineConfig
    num: int
    length: int
    tap: Tap | None = None
    eager: bool = False
    _taken: int = 0
    _num_texts: int = 0

    def __post_init__(self) -> None:
        config = msgspec.structs.replace(self.config, max_model_len=self.length)
        self.assembly = assemble(config, tap=self.tap)
        self.page_tokens = self.assembly.plan.page_tokens
        num_pages = self.num * self._pages(self.length)
        config = msgspec.structs.replace(config, num_kv_blocks=num_pages + 1)
        self.runner = open_runner(self.assembly, config, eager=self.eager)
        if self.eager or self.assembly.facts.shapes.dynamic:
            self._poison()
        self._free = np.random.Philox(key=num_pages).random_raw(num_pages).argsort() + 1

    def _poison(self) -> None:
        """Every bit of the cache set: NaN, or -1. Fresh memory may hold the entries of a run before: right by luck."""
        device = self.assembly.device
        for plane in (plane for group in self.runner.kv for planes in group for plane in planes):
            ones = torch.full((plane.numel() * plane.element_size(),), 0xFF, dtype=torch.uint8)
            device.h2d(plane, ones.view(plane.dtype).view(plane.shape)).synchronize()

    @property
    def plan(self) -> Plan:
        return self.runner.plan

    def _pages(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_tokens)

    def add(self, ids: torch.Tensor, prefix: Text | None = None, num_shared: int = 0) -> Text:
        """A text to compute. It begins with the first `num_shared` pages of `prefix`, which are computed already."""
        shared = prefix.pages[:num_shared] if prefix else []
        num_own = self._pages(len(ids)) - len(shared)
        own = self._free[self._taken : self._taken + num_own].tolist()
        assert len(own) == num_own, "no page is left"
        self._taken += num_own
        self._num_texts += 1
        return Text(self._num_texts, ids.tolist(), shared + own, num_shared * self.page_tokens)

    def forget(self) -> None:
        """Take back the pages and rows of all texts, as they are."""
        self._taken = self._num_texts = 0

    def step(self, pieces: Sequence[Piece]) -> list[torch.Tensor]:
        """Compute these pieces together. Per piece: the logits wanted, float32 [rows, V]."""
        plan = StepPlan([], [], [], [], [], [], [], [])
        for piece in pieces:
            text = piece.text
            if text.is_new:
                tables = [text.pages] * len(self.assembly.groups)
                plan.new.append(NewSequence(text.row, text.ids, tables, self._request(), len(text.ids)))
                text.is_new = False
            plan.rows.append(text.row)
            plan.starts.append(text.start)
            plan.counts.append(piece.num)
            plan.samples.append(piece.wanted is Wanted.LAST)
            plan.scores.append(piece.wanted is Wanted.ALL)
            text.start += piece.num
        logits = self.runner.logits(plan)
        starts = {Wanted.NONE: 0, Wanted.LAST: 0, Wanted.ALL: sum(plan.samples)}
        parts = []
        for piece in pieces:
            num = {Wanted.NONE: 0, Wanted.LAST: 1, Wanted.ALL: piece.num}[piece.wanted]
            first = starts[piece.wanted]
            parts.append(logits[first : first + num])
            starts[piece.wanted] += num
        return parts

    def _request(self) -> Request:
        return Request(
            request_id="",
            prompt_ids=[],
            temperature=0.0,
            top_k=0,
            top_p=1.0,
            seed=0,
            max_tokens=1,
            stop_ids=[],
        )

    def by_chunks(self, text: Text, chunk: int) -> torch.Tensor:
        """Logits after each token of a text but the last, `chunk` tokens at a time: [L - 1, V]."""
        chunk = min(chunk, self.plan.max_num_seqs, self.plan.max_num_batched_tokens)
        parts = []
        while text.start < len(text.ids) - 1:
            parts += self.step([Piece(text, min(chunk, len(text.ids) - 1 - text.start))])
        return torch.cat(parts)

    def fill(self, text: Text, num: int) -> None:
        """Compute a text up to `num` tokens in pieces as large as may be."""
        while text.start < num:
            self.step([Piece(text, min(self.plan.max_num_batched_tokens, num - text.start), Wanted.NONE)])

    def together(self, texts: Sequence[Text]) -> torch.Tensor:
        """Logits after each token that is left of these texts but the last, one token of each at a time: [N, L, V]."""
        parts = []
        while texts[0].start < len(texts[0].ids) - 1:
            parts.append(torch.cat(self.step([Piece(text, 1, Wanted.LAST) for text in texts])))
        return torch.stack(parts, 1)
