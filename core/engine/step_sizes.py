"""How large steps were, in tokens: for histograms of people who watch an engine."""

from __future__ import annotations

from bisect import bisect_left

BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Steps are counted by their tokens: up to 1, up to 8, and so on; the last count is of those that are larger."""


class StepSizes:
    """Counts since the engine's start: of tokens in all steps, and of steps for each of `BOUNDS` and beyond."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self.num_steps = [0] * (len(BOUNDS) + 1)

    def add(self, num_tokens: int) -> None:
        """One more step."""
        self.num_tokens += num_tokens
        self.num_steps[bisect_left(BOUNDS, num_tokens)] += 1
