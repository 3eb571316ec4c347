"""A plan while the scheduler makes it, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

from core.engine.grammar import Matcher
from core.engine.sequence import Sequence
from core.engine.step import StepOutput, StepPlan
from core.request import Logprobs


class Item(NamedTuple):
    """What one sequence does in a step: compute tokens, perhaps draw, perhaps score its prompt."""

    seq: Sequence
    num_tokens: int
    samples: bool
    scores: bool


class Batch:
    """A plan, and the tokens, sequences and logit rows that still fit into it.

    Each item has one logit row, or as many as tokens where it scores them; together they are `max_seqs` at most.
    """

    def __init__(self, budget: int, max_seqs: int, transferred: int) -> None:
        self.budget = budget
        self.num_logits = max_seqs
        self.items: list[Item] = []
        self.matchers: list[Matcher] = []  # of the draws in plan.masked
        self._num_draws = 0
        self.plan = StepPlan([], [], [], [], [], [], [], [], transferred=transferred)

    @property
    def full(self) -> bool:
        return self.budget < 1 or self.num_logits < 1

    def room_for(self, seq: Sequence) -> int:
        """Tokens of `seq` that fit, at most: with one for each of its rows where logits of all are wanted."""
        return min(self.budget, self.num_logits) if seq.scores and seq.scores_next else self.budget

    def add(self, seq: Sequence, start: int, count: int) -> None:
        """Schedule `count` tokens of `seq`, the first of which is at position `start`, its frontier."""
        plan = self.plan
        samples = start + count == len(seq.token_ids) + seq.num_pending
        scores = seq.scores and seq.scores_next
        plan.rows.append(seq.row)
        plan.starts.append(start)
        plan.counts.append(count)
        plan.samples.append(samples)
        plan.scores.append(scores)
        if samples and seq.matcher is not None:
            plan.masked.append(self._num_draws)
            self.matchers.append(seq.matcher)
        if samples and seq.embeds:
            plan.embeds.append(self._num_draws)
        self._num_draws += samples
        self.items.append(Item(seq, count, samples, scores))
        self.budget -= count
        self.num_logits -= count if scores else 1
        seq.num_scheduled += count
        seq.num_pending += samples


def retire(items: list[Item], output: StepOutput) -> Iterator[tuple[Sequence, int | None, Logprobs | None]]:
    """Each sequence of a step that has ended, its counts brought up to date, with the id it drew and its report."""
    draws = iter(zip_longest(output.ids, output.logprobs))
    scores, hidden = iter(output.prompt_logprobs), iter(output.hidden)
    for seq, num_tokens, samples, scored in items:
        seq.num_computed += num_tokens
        seq.num_scheduled -= num_tokens
        seq.num_pending -= samples
        if scored:
            seq.prompt_logprobs += next(scores)
        if samples and seq.embeds:
            seq.embedding = next(hidden)
        drawn, logprobs = next(draws) if samples else (None, None)
        yield seq, drawn, logprobs
