"""A plan while the scheduler makes it, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import NamedTuple

from core.engine.sequence import Sequence
from core.engine.step import NewSequence, StepOutput, StepPlan, Transfer
from core.kv.cache import KVCache
from core.request import Logprobs
from core.speculate.drafting import Drafting


@dataclass
class Item:
    """What one sequence does in a step: compute tokens, perhaps draw, perhaps score its prompt.

    num_tokens   known ones: drafts are not among them
    drafts       that may be accepted: no more than were planned
    num_draws    1 and as many as drafts were planned; 0 where it does not draw
    """

    seq: Sequence
    start: int
    num_tokens: int
    samples: bool
    scores: bool
    drafts: list[int] = field(default_factory=list)
    num_draws: int = 0

    @property
    def may_draft(self) -> bool:
        """Whether its draw follows all that is known, so that drafts can come between."""
        return self.samples and not self.scores and self.start + self.num_tokens == len(self.seq.token_ids)


class Batch:
    """A plan, and the tokens and logit rows that still fit into it.

    Each item has one logit row and one for each draft, or as many as tokens where it scores them.
    """

    def __init__(self, budget: int, num_logits: int) -> None:
        self._most = self.budget = budget
        self.num_logits = num_logits
        self.items: list[Item] = []
        self.new: list[NewSequence] = []

    @property
    def full(self) -> bool:
        return self.budget < 1 or self.num_logits < 1

    @property
    def num_tokens(self) -> int:
        return self._most - self.budget

    @property
    def num_draws(self) -> int:
        """Of all items."""
        return sum(item.num_draws for item in self.items)

    @property
    def masked(self) -> list[Item]:
        """Items whose draws wait for masks."""
        return [item for item in self.items if item.samples and item.seq.matcher]

    def room_for(self, seq: Sequence) -> int:
        """Tokens of `seq` that fit, at most: with one for each of its rows where logits of all are wanted."""
        return min(self.budget, self.num_logits) if seq.scores and seq.scores_next else self.budget

    def add(self, seq: Sequence, start: int, count: int) -> None:
        """Schedule `count` tokens of `seq`, the first of which is at position `start`, its frontier."""
        samples = start + count == len(seq.token_ids) + seq.num_pending
        scores = seq.scores and seq.scores_next
        self.items.append(Item(seq, start, count, samples, scores, num_draws=int(samples)))
        self.budget -= count
        self.num_logits -= count if scores else 1
        seq.num_scheduled += count
        seq.num_pending += samples

    def draft(self, item: Item, ids: list[int]) -> None:
        """Let an item that draws compute drafts, too."""
        item.drafts, item.num_draws, item.seq.num_drafts = ids, 1 + len(ids), len(ids)
        self.budget -= len(ids)
        self.num_logits -= len(ids)

    def plan(self, edits: list[tuple[int, int, int, int]], transfers: list[Transfer], transferred: int) -> StepPlan:
        """All that was scheduled. Devices are told of ids that they lack and need."""
        drawn: list[tuple[int, int]] = []
        masked: list[int] = []
        embeds: list[int] = []
        num_draws = 0
        for item in self.items:
            seq, draws = item.seq, range(num_draws, num_draws + item.num_draws)
            if seq.recalls:
                drawn += [(seq.row, token_id) for token_id in seq.tell()]
            if seq.matcher is not None:
                masked += draws
            if seq.embeds:
                embeds += draws
            num_draws += item.num_draws
        return StepPlan(
            self.new,
            [item.seq.row for item in self.items],
            [item.start for item in self.items],
            [item.num_tokens + len(item.drafts) for item in self.items],
            [item.samples for item in self.items],
            edits,
            [item.scores for item in self.items],
            drawn,
            masked,
            embeds,
            transfers,
            transferred,
            drafts=[list(item.drafts) for item in self.items] if any(item.drafts for item in self.items) else [],
            foretells=any(item.seq.drafter and item.seq.drafter.followed for item in self.items),
        )


def add_drafts(batch: Batch, drafting: Drafting, cache: KVCache, room: bool) -> list[tuple[int, int, int, int]]:
    """Let items go on with drafts, for which their tables grow: the entries that change.

    room   nobody waits for pages
    """
    edits = []
    able = [(item, item.seq.drafter) for item in batch.items if item.seq.drafter and item.may_draft]
    proposed = drafting.propose([drafter for _, drafter in able], batch.num_tokens, batch.num_draws)
    for (item, _), guessed in zip(able, proposed, strict=True):
        seq, table, end = item.seq, item.seq.table, item.start + item.num_tokens
        assert table is not None
        ids = seq.allowed(guessed[: min(batch.budget, batch.num_logits)])
        if not (room and cache.can_take(cache.missing(table, end + len(ids)))):
            del ids[table.capacity - end :]
        if ids:
            edits += [(seq.row, *edit) for edit in cache.grow(table, end + len(ids))]
            batch.draft(item, ids)
    return edits


class Retired(NamedTuple):
    """An item of a step that has ended.

    drawn, reports   ids as far as drafts were right, and their log-probabilities
    foretold         what the device foretells to follow them
    """

    item: Item
    drawn: list[int]
    reports: list[Logprobs]
    foretold: list[int]


def retire(items: list[Item], output: StepOutput) -> Iterator[Retired]:
    """Each item, its sequence's counts brought up to date. Drafts are not counted as computed yet."""
    draws = zip_longest(output.ids, output.logprobs, output.foretold)
    scores, hidden, accepted = iter(output.prompt_logprobs), iter(output.hidden), iter(output.accepted)
    for item in items:
        seq = item.seq
        seq.num_computed += item.num_tokens
        seq.num_scheduled -= item.num_tokens
        seq.num_pending -= item.samples
        if item.samples:
            seq.num_drafts = 0
        if item.scores:
            seq.prompt_logprobs += next(scores)
        if item.samples and seq.embeds:
            seq.embedding = next(hidden)
        own = list(islice(draws, item.num_draws))
        right = own[: 1 + min(next(accepted, 0), len(item.drafts))] if item.samples else []
        foretold = (right[-1][2] or []) if right else []
        reports = [report for _, report, _ in right if report is not None]
        yield Retired(item, [token_id for token_id, *_ in right], reports, foretold)
