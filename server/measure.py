"""Measuring generation speed, of core and of a peer beside it on the same weights.

The runners take turns within every repetition, so that what else the machine does falls on both. A decode rate
counts from the moment at which every sequence of the batch has its first token.
"""

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Timing:
    """One run: until every sequence had its first token, until the end, and the tokens drawn in between."""

    first_s: float
    total_s: float
    num_decoded: int


class Runner(Protocol):
    """Something that generates. `versions` says exactly what it is."""

    name: str
    versions: str

    def generate(self, prompts: list[list[int]], num_tokens: int) -> Timing:
        """Continue every prompt, as one batch, greedily, by exactly `num_tokens`."""


@dataclass(frozen=True)
class Case:
    """One thing to measure: `decode` of a batch, `prefill` of prompts, or the `throughput` of both together."""

    kind: str
    batch_size: int
    input_len: int
    output_len: int

    @property
    def title(self) -> str:
        if self.kind == "prefill":
            return f"prefill {self.input_len}"
        if self.kind == "throughput":
            return f"{self.batch_size} requests, {self.input_len} in, {self.output_len} out"
        return f"decode, batch {self.batch_size}, context {self.input_len}"


@dataclass
class Result:
    """Tokens per second, one entry for each repetition."""

    case: Case
    runner: str
    tokens_per_s: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.tokens_per_s)

    @property
    def spread(self) -> tuple[float, float]:
        return min(self.tokens_per_s), max(self.tokens_per_s)


def cases(
    batch_sizes: Sequence[int], input_lens: Sequence[int], output_len: int, prefill_lens: Sequence[int]
) -> list[Case]:
    """The decode cases, then the prefill cases."""
    decode = [Case("decode", size, length, output_len) for length in input_lens for size in batch_sizes]
    return decode + [Case("prefill", 1, length, 1) for length in prefill_lens]


def measure(
    runners: Sequence[Runner],
    wanted: Sequence[Case],
    repetitions: int,
    vocab_size: int,
    tick: Callable[[int, int], None],
) -> Iterator[list[Result]]:
    """Results of each case, one for each runner. `tick` is called with (runs done, runs in all)."""
    draw = random.Random(0)
    done, total = 0, len(wanted) * (repetitions + 1) * len(runners)
    for case in wanted:
        results = [Result(case, runner.name) for runner in runners]
        for repetition in range(repetitions + 1):
            prompts = [[draw.randrange(vocab_size) for _ in range(case.input_len)] for _ in range(case.batch_size)]
            for runner, result in zip(runners, results, strict=True):
                rate = _rate(runner, case, prompts)
                if repetition:  # the first one warms up
                    result.tokens_per_s.append(rate)
                done += 1
                tick(done, total)
        yield results


def _rate(runner: Runner, case: Case, prompts: list[list[int]]) -> float:
    timing = runner.generate(prompts, case.output_len)
    if case.kind == "throughput":
        return case.batch_size * (case.input_len + case.output_len) / timing.total_s
    if case.kind == "prefill":
        return case.batch_size * case.input_len / timing.first_s
    return timing.num_decoded / (timing.total_s - timing.first_s)
