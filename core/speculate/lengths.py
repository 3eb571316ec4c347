"""How many drafts pay: from how often a sequence's drafts were right, and how long steps took.

A step with j drafts takes as long as steps of that many tokens took lately (`core.speculate.times`), and emits a token
for each draw and each right draft. Drafts are taken in the order of their chance, and as many of them as give the most
tokens a second; none where that is hardly more than without. But a step is longer for all, and a sequence whose drafts
are wrong has nothing of it: so a step is no longer than what sequences, all but an eighth, have of drafts, in this step
or over their lives, makes up for. What is not known is found out: a step of a new size, and now and then one of a size
that is always given drafts, has none, and one of a size that never is has some; the chance of a sequence that does not
draft drifts back to what is expected of strangers, so that it is tried again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from core.speculate.times import Floats, Times

EXPECTED = 0.7  # chance of a draft, of which nothing is known yet
_NEWS, _DRIFT = 0.1, 0.005  # weights of one outcome, and of one draw without drafts
_REFRESH = 16  # steps with drafts after which their size without any is measured again
_LEAST_GAIN = 1.1  # less than that is lost in what is not measured, and in what is measured badly
_TRY, _MAY_GAIN = 128, 0.7  # steps without drafts after which some are tried, and what these must gain at least
_LEAST_PACE = 0.96  # of a sequence beside itself without drafts, over its life
_WORTH = 0.2  # right drafts a draw that are worth a wait for the draw before
_TRIAL, _EVERY = 8, 64

Drafts: TypeAlias = "Sequence[tuple[Record, int]]"
"""Of each sequence: how good its drafts are, and how many there are."""
_Ranked: TypeAlias = tuple[float, int, int]
"""Minus the chance that it is right, its place among those of its sequence, the sequence's number."""


class Record:
    """How good the drafts of one sequence are.

    chance   that a draft is right if those before it are
    pace     tokens a draw so far; of the first few draws nothing is asked
    """

    def __init__(self, expected: float = EXPECTED) -> None:
        self.chance = self._expected = expected
        self._num_right_a_draw = 1.0
        self._num_draws = self._num_right = 0

    @property
    def pace(self) -> float:
        return 1 + self._num_right / self._num_draws if self._num_draws >= _TRIAL else math.inf

    @property
    def waits(self) -> bool:
        """Whether the sequence should wait for each draw, so that drafts can follow it: now and then in any case."""
        return self._num_right_a_draw > _WORTH or self._num_draws % _EVERY < _TRIAL

    def add(self, num: int, num_right: int) -> None:
        """A draw came with so many drafts, and so many of them were right."""
        self._num_draws += 1
        self._num_right += num_right
        self._num_right_a_draw += _NEWS * (num_right - self._num_right_a_draw)
        for _ in range(num_right):
            self.chance += _NEWS * (1 - self.chance)
        if num_right < num:
            self.chance -= _NEWS * self.chance
        if not num:
            self.chance += _DRIFT * (self._expected - self.chance)


class Lengths:
    """Chooses the drafts of a step."""

    def __init__(self) -> None:
        self.times = Times()
        self._num_idle = 0  # steps without drafts that there were
        self._ages: dict[int, int] = {}  # size without drafts -> steps with some since the last one without

    def add_step(self, num_tokens: int, seconds: float, foretelling_s: float = 0.0) -> None:
        """A step of so many tokens took so long in all, and so long to foretell ids; 0: it did not."""
        size = _rounded(num_tokens)
        self._ages[size] = 0
        self.times.add(size, seconds - foretelling_s, foretelling_s)

    def choose(self, drafts: Drafts, num_tokens: int, num_draws: int) -> list[int]:
        """How many drafts of each sequence to compute, of so many that there are.

        num_tokens, num_draws   of the step without drafts
        """
        counts = [0] * len(drafts)
        ranked = _ranked(drafts)
        size = _rounded(num_tokens)
        if not ranked or self._ages.get(size, _REFRESH) >= _REFRESH:
            return counts
        rates, kept = self._rates(drafts, ranked, num_tokens, num_draws)
        if num := _num_taken(rates, kept) or self._num_tried(rates):
            self._ages[size] += 1
            for _, _, i in ranked[:num]:
                counts[i] += 1
        return counts

    def _num_tried(self, rates: Floats) -> int:
        """Now and then, the best number of drafts that is not known to pay, lest a step that was disturbed decides."""
        self._num_idle += 1
        best = 1 + int(rates[1:].argmax())
        if self._num_idle < _TRY or rates[best] < _MAY_GAIN * rates[0]:
            return 0
        self._num_idle = 0
        return best

    def best_rate(self, drafts: Drafts, num_draws: int) -> float:
        """Tokens a second, in the unit of `times`, of sequences that decode with as many of their drafts as pay."""
        rates, kept = self._rates(drafts, _ranked(drafts), num_draws, num_draws)
        return float(rates[_num_taken(rates, kept)])

    def _rates(
        self, drafts: Drafts, ranked: list[_Ranked], num_tokens: int, num_draws: int
    ) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """Tokens a second, with none, one, ... of the drafts, and whether that slows no more of them than it may."""
        emitted = num_draws + np.concatenate([[0], np.cumsum([-chance for chance, _, _ in ranked])])
        times = self.times.whole(num_tokens + np.arange(len(emitted), dtype=np.float64))
        return emitted / times, _least_tokens(drafts, ranked, num_draws) * times[0] >= _LEAST_PACE * times


def _num_taken(rates: Floats, kept: npt.NDArray[np.bool_]) -> int:
    """How many drafts: see `Lengths._rates`."""
    best = int(np.where(kept, rates, 0.0).argmax())
    return best if rates[best] >= _LEAST_GAIN * rates[0] else 0


def _least_tokens(drafts: Drafts, ranked: list[_Ranked], num_draws: int) -> Floats:
    """With none, one, ... of the drafts: what all sequences but an eighth have of a draw, in this step or over their
    lives, at the least."""
    if len(drafts) < num_draws:  # some have no drafter
        return np.ones(len(ranked) + 1)
    own = np.zeros((len(ranked) + 1, len(drafts)))
    for row, (chance, _, i) in enumerate(ranked, 1):
        own[row, i] = -chance
    life = np.array([record.pace for record, _ in drafts])
    slow = len(drafts) // 8  # among many there always are some
    return np.asarray(np.partition(np.maximum(1 + own.cumsum(0), life), slow)[:, slow])


def _ranked(drafts: Drafts) -> list[_Ranked]:
    """All drafts, the likeliest first."""
    return sorted((-(record.chance**place), place, i) for i, (record, num) in enumerate(drafts)
                  for place in range(1, num + 1))  # fmt: skip


def _rounded(num_tokens: int) -> int:
    """Sizes that are told apart: each up to 32, then a sixteenth of a power of two apart."""
    step = 1 << max(0, num_tokens.bit_length() - 5)
    return -(-num_tokens // step) * step
