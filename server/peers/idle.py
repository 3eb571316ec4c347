"""Whether all others are idle while one is measured: threads that spin would take its processor time."""

import time
from collections.abc import Sequence
from typing import Protocol

from server.measure import Runner, Timing

ALLOWED_SHARE = 0.02


class Counted(Runner, Protocol):
    """A runner whose processor time is known."""

    def processor_s(self) -> float:
        """Processor time so far."""


class Turn:
    """A runner, which notes what processor time the others took during its turns."""

    def __init__(self, runner: Counted, others: Sequence["Turn"]) -> None:
        self.name = runner.name
        self.versions = runner.versions
        self._runner = runner
        self._others = others
        self._idle_s = self._used_s = 0.0

    @property
    def idle_share(self) -> float:
        """Processor seconds for each second of the others' turns; 0.0 before there was one."""
        return self._used_s / self._idle_s if self._idle_s else 0.0

    def generate(self, prompts: list[list[int]], num_tokens: int) -> Timing:
        others = [turn for turn in self._others if turn is not self]
        before_s = [turn._runner.processor_s() for turn in others]
        start_s = time.perf_counter()
        timing = self._runner.generate(prompts, num_tokens)
        passed_s = time.perf_counter() - start_s
        for turn, used_s in zip(others, before_s, strict=True):
            turn._used_s += max(0.0, turn._runner.processor_s() - used_s)
            turn._idle_s += passed_s
        return timing


def turns(runners: Sequence[Counted]) -> list[Turn]:
    """Each runner, watched beside the others."""
    made: list[Turn] = []
    made.extend(Turn(runner, made) for runner in runners)
    return made
