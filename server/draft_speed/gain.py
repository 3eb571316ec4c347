"""What a run with drafts did beside one without: the gain, and the cost model that explains it.

With drafts a sequence gets several tokens from a step, and a step takes longer. So while all sequences of a batch run,
the gain is

    tokens per step / (time of a step with drafts / time of a step without)

where the time with drafts has that of draft layers in it. That gain is what a server with work enough would have. What
is measured over whole answers is less in a batch: sequences whose drafts are right end sooner, and the others go on in
steps that are less full.
"""

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from core import ConfigError
from server.runners import Step

Ids = list[list[int]]
"""Of each prompt."""


class Run(msgspec.Struct, frozen=True):
    """One generation, by sequences that draw the same number of ids.

    num_draws      of all sequences; each gave an id and right drafts
    tokens_per_s   from the moment at which every sequence had its first one to the end
    tokens_per_step, step_s, foretelling_s   tokens of a sequence, seconds, and those of them that draft layers took:
                   means over the steps in which all sequences run and decode
    """

    num_draws: int
    tokens_per_s: float
    tokens_per_step: float
    step_s: float
    foretelling_s: float = 0.0


class _Mark(NamedTuple):
    """Where a run was after some turn: seconds, tokens of all sequences, seconds of draft layers."""

    end_s: float
    num_tokens: int
    foretelling_s: float


def watch(steps: Iterable[Step], num_seqs: int, output_len: int) -> tuple[Run, Ids]:
    """What a generation did, and what it drew. Raises: ConfigError where a sequence ended before another one began."""
    ids: Ids = [[] for _ in range(num_seqs)]
    marks: list[_Mark] = []  # from the turn on with which all have begun
    last: _Mark | None = None  # of those that draw in which all run
    num_draws = num_whole = 0
    for step in steps:
        ended = max(map(len, ids)) == output_len
        for number, new in step.drawn.items():
            ids[number] += new
        num_draws += len(step.drawn)
        mark = _Mark(step.end_s, sum(map(len, ids)), step.foretelling_s)
        if marks and not ended and step.drawn:
            last, num_whole = mark, num_whole + 1
        if all(ids):
            marks.append(mark)
    if last is None:
        raise ConfigError(
            f"a sequence of {output_len} tokens ended before all {num_seqs} had begun: raise --output-len, or "
            "--max-num-batched-tokens"
        )
    first, end = marks[0], marks[-1]
    run = Run(
        num_draws=num_draws,
        tokens_per_s=(end.num_tokens - first.num_tokens) / (end.end_s - first.end_s),
        tokens_per_step=(last.num_tokens - first.num_tokens) / num_whole / num_seqs,
        step_s=(last.end_s - first.end_s) / num_whole,
        foretelling_s=(last.foretelling_s - first.foretelling_s) / num_whole,
    )
    return run, ids


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """Of one kind of prompts, one batch size and one drafter. Runs: one for each repetition, in turns.

    speculative            the drafter
    fixed                  all drafts that were proposed were computed, else as many as pay
    max_drafts             that a sequence may have in a step
    output_len             tokens of each answer
    versions               of core, torch and the device
    num_draft_tokens       that were computed
    num_accepted_at        those of them that were right, by place among the drafts of a draw
    num_reached_at         those that could be, since all before them were
    margins                of answers that differ, by how much likelier the first other id was without drafts (nats)
    """

    kind: str
    batch_size: int
    speculative: str
    fixed: bool
    max_drafts: int
    output_len: int
    versions: str
    without: list[Run]
    drafted: list[Run]
    num_draft_tokens: int
    num_accepted_at: list[int]
    num_reached_at: list[int]
    margins: list[float] = []

    @property
    def drafter(self) -> str:
        """Its name, and whether it computes what it proposes."""
        return f"{self.speculative}, all" if self.fixed else self.speculative

    @property
    def case(self) -> tuple[str, int, str]:
        """What is measured."""
        return self.kind, self.batch_size, self.drafter

    def told(self) -> str:
        """In one line."""
        ratios = f"{self.measured:.2f} ({min(self.ratios):.2f} to {max(self.ratios):.2f})"
        return f"{self.kind}, batch {self.batch_size}, {self.drafter}: {ratios} times as fast"

    @property
    def ratios(self) -> list[float]:
        """Measured: tokens per second with drafts beside those without, of each repetition."""
        return [d.tokens_per_s / p.tokens_per_s for p, d in zip(self.without, self.drafted, strict=True)]

    @property
    def measured(self) -> float:
        return statistics.median(self.ratios)

    @property
    def tokens_per_step(self) -> float:
        return statistics.median(run.tokens_per_step for run in self.drafted)

    @property
    def step_without_s(self) -> float:
        return statistics.median(run.step_s for run in self.without)

    @property
    def step_drafted_s(self) -> float:
        """Draft layers included, where there are some."""
        return statistics.median(run.step_s for run in self.drafted)

    @property
    def foretelling_s(self) -> float:
        """What draft layers took of it."""
        return statistics.median(run.foretelling_s for run in self.drafted)

    @property
    def implied(self) -> float:
        """The gain that the cost model gives, as `measured`: the median of what each repetition gives."""
        pairs = zip(self.without, self.drafted, strict=True)
        return statistics.median(d.tokens_per_step / (d.step_s / p.step_s) for p, d in pairs)

    @property
    def drafts_per_draw(self) -> float:
        return self.num_draft_tokens / sum(run.num_draws for run in self.drafted)

    @property
    def acceptance(self) -> list[float | None]:
        return rates(self.num_accepted_at, self.num_reached_at)

    @property
    def num_answers(self) -> int:
        return self.batch_size * len(self.drafted)


def rates(accepted: Sequence[int], reached: Sequence[int]) -> list[float | None]:
    """By place: the part of the drafts that were right, of those whose predecessors were; None: there were none."""
    return [right / num if num else None for right, num in zip(accepted, reached, strict=True)]
