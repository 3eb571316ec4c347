"""A plan while the scheduler makes it."""

from __future__ import annotations

from core.engine.sequence import Sequence
from core.engine.step import StepPlan


class Batch:
    """A plan, and the tokens and sequences that still fit into it."""

    def __init__(self, budget: int, max_seqs: int) -> None:
        self.budget = budget
        self.max_seqs = max_seqs
        self.items: list[tuple[Sequence, int, bool]] = []
        self.plan = StepPlan([], [], [], [], [], [])

    @property
    def full(self) -> bool:
        return self.budget < 1 or len(self.items) >= self.max_seqs

    def add(self, seq: Sequence, start: int, count: int) -> None:
        """Schedule `count` tokens of `seq`, the first of which is at position `start`, its frontier."""
        plan = self.plan
        samples = start + count == len(seq.token_ids) + seq.num_pending
        plan.rows.append(seq.row)
        plan.starts.append(start)
        plan.counts.append(count)
        plan.samples.append(samples)
        self.items.append((seq, count, samples))
        self.budget -= count
        seq.num_scheduled += count
        seq.num_pending += samples
