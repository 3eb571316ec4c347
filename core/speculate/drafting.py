"""Ids guessed ahead, and computed together with the last known one: what the scheduler needs for it.

Owns the protocol of drafters that run on the host, what is accepted, counts for people, and how many drafts pay.

Why drafts change nothing. A draw depends on the logits at its position, on the request's parameters, on its seed and on
the position (`core.kernels.reference.sampling`), and on nothing else. The row of logits after a right draft is the one
that there would be without drafts, so what is drawn from it is what would be drawn, greedily or at any temperature. So
drafts are compared with the draws: as far as they agree the draws count, and so does the first that does not agree.
Rounding alone may tell a step of several tokens from one of one: `batch_invariant` rules that out, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from core.speculate.following import Following
from core.speculate.lengths import EXPECTED, Lengths, Record

# Of what is expected of the next sequence: weight of one draw with drafts, and of the start in one without.
_NEWS, _DRIFT = 0.02, 0.0005


class Drafter(Protocol):
    """Guesses what one sequence draws next. It lives as long as the sequence."""

    def propose(self, token_ids: Sequence[int], num: int) -> list[int]:
        """At most `num` ids that may follow all known ones, which only grow from call to call."""


class SequenceDrafts:
    """A sequence's drafter, or else what the device foretells of it, and what came of its drafts.

    followed   the device foretells, and did so in every step that computed tokens of the sequence
    """

    def __init__(self, drafter: Drafter | None, token_ids: Sequence[int], expected: float) -> None:
        """`token_ids` is the list that the sequence adds to; `expected`: chance that a draft is right."""
        self._drafter, self._token_ids = drafter, token_ids
        self.followed = False
        self._foretold: Sequence[int] = ()
        self._foretold_at = 0  # how many ids were known then
        self.record = Record(expected)

    def hear(self, foretold: Sequence[int]) -> None:
        """The device foretells these ids, after all that are known now."""
        self._foretold, self._foretold_at = foretold, len(self._token_ids)

    @property
    def waits(self) -> bool:
        """Whether the sequence should wait for each draw, so that drafts can follow it."""
        return (self._drafter is not None or self.followed) and self.record.waits

    def propose(self, num: int) -> list[int]:
        if self._drafter is not None:
            return self._drafter.propose(self._token_ids, num) if num > 0 else []
        if self.followed and self._foretold_at == len(self._token_ids):
            return list(self._foretold[:num])
        return []


@dataclass
class DraftCounts:
    """Since the start: drafts that were right, by their place among those of a draw, and those that could be, since all
    before them were; draws with drafts; drafts.

    num_foretelling, foretelling_s   steps in which the device foretold ids, and how long that took
    """

    num_accepted_at: list[int]
    num_reached_at: list[int]
    num_drafts: int = 0
    num_tokens: int = 0
    num_foretelling: int = 0
    foretelling_s: float = 0.0


class Drafting:
    """What drafts for the sequences of one engine.

    open_drafter   for each sequence; None: the device foretells ids
    max_drafts     of a sequence in a step
    lengths        decides how many pay; None: all that are proposed are computed

    counts         for people
    """

    def __init__(
        self, open_drafter: Callable[[], Drafter] | None, max_drafts: int, lengths: Lengths | None = None
    ) -> None:
        self._open_drafter = open_drafter
        self.max_drafts, self.lengths = max_drafts, lengths
        self.counts = DraftCounts([0] * max_drafts, [0] * max_drafts)
        self._expected = EXPECTED
        self._following = Following(lengths) if lengths and open_drafter is None else None

    def open(self, token_ids: Sequence[int]) -> SequenceDrafts:
        """For a sequence with these ids, and those that are added to them."""
        return SequenceDrafts(self._open_drafter and self._open_drafter(), token_ids, self._expected)

    def follow(self, drafts: SequenceDrafts, num: int) -> None:
        """Let the device follow a sequence of which nothing is computed, or no more than it has followed already.

        num   sequences that will run together
        """
        if self._open_drafter is None:
            following = self._following
            drafts.followed = not following or following.would_pay(Record(self._expected), self.max_drafts, num)

    def propose(self, drafts: Sequence[SequenceDrafts], num_tokens: int, num_draws: int) -> list[list[int]]:
        """Drafts of sequences in a step that has so many tokens and draws without them."""
        proposed = [each.propose(self.max_drafts) for each in drafts]
        if self.lengths is None:
            return proposed
        wanted = [(each.record, len(ids)) for each, ids in zip(drafts, proposed, strict=True)]
        if self._following and any(proposed) and self._following.is_lost(wanted):
            for each in drafts:
                each.followed = False
        counts = self.lengths.choose(wanted, num_tokens, num_draws)
        return [ids[:count] for ids, count in zip(proposed, counts, strict=True)]

    def learn_time(self, num_tokens: int, seconds: float, foretelling_s: float) -> None:
        """A step of so many tokens took so long, a part of it to foretell ids."""
        if foretelling_s:
            self.counts.num_foretelling += 1
            self.counts.foretelling_s += foretelling_s
        if self.lengths:
            self.lengths.add_step(num_tokens, seconds, foretelling_s)

    def learn_gain(self, num_draws: int, num_emitted: int) -> None:
        """A step in which ids were foretold, and all sequences decoded, emitted so many tokens."""
        if self._following:
            self._following.add(num_draws, num_emitted)

    def learn(self, drafts: SequenceDrafts, num: int, num_right: int) -> None:
        """A draw of a sequence came with so many drafts, and so many of them were right."""
        drafts.record.add(num, num_right)
        if num:
            self._expected += _NEWS * (drafts.record.chance - self._expected)
        elif self._open_drafter:
            self._expected += _DRIFT * (EXPECTED - self._expected)
        self.counts.num_drafts += num > 0
        self.counts.num_tokens += num
        for place in range(num_right):
            self.counts.num_accepted_at[place] += 1
        for place in range(min(num, num_right + 1)):
            self.counts.num_reached_at[place] += 1
