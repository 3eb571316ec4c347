"""How many drafts pay: from how often a sequence's drafts were right, and how long steps took.

A step with j drafts takes as long as steps of that many tokens took lately, and emits a token for each draw and each
right draft. Drafts are taken in the order of their chance, and as many of them as give the most tokens a second; none
where that is hardly more than without. What is not known is found out: a step of a new size, and now and then one of a
size that is always given drafts, has none; the chance of a sequence that does not draft drifts back to what is expected
of strangers, so that it is tried again.

What disturbs a step makes it longer, so of the first few times of a size the least counts, and of later ones no more
than half as much again. The least of all would be less for sizes that come often, which are those with drafts.

Where the device foretells ids, that is a part of the step, and its time is known by itself: so is what it would take
without (`worth`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

EXPECTED = 0.7  # chance of a draft, of which nothing is known yet
_NEWS, _DRIFT = 0.1, 0.005  # weights of one outcome, and of one draw without drafts
_FIRST = 3  # steps of a size, of which the least time counts; later ones move it
_STEP_NEWS, _MOST_NEWS = 0.2, 0.5  # weight of one step's time, and how much of it counts at most
ENOUGH, _FADES = 32, 0.01  # draws that tell whether foretelling pays, and how fast old steps count less
_REFRESH = 16  # steps with drafts after which their size without any is measured again
_LEAST_GAIN = 1.1  # less than that is lost in what is not measured, and in what is measured badly
_WORTH = 0.2  # right drafts a draw that are worth a wait for the draw before
_TRIAL, _EVERY = 8, 64

Floats: TypeAlias = npt.NDArray[np.float64]
Drafts: TypeAlias = "Sequence[tuple[Record, int]]"
"""Of each sequence: how good its drafts are, and how many there are."""
_Ranked: TypeAlias = tuple[float, int, int]
"""Minus the chance that it is right, its place among those of its sequence, the sequence's number."""


class Record:
    """How good the drafts of one sequence are.

    chance   that a draft is right if those before it are
    """

    def __init__(self, expected: float = EXPECTED) -> None:
        self.chance = self._expected = expected
        self._num_right_a_draw = 1.0
        self._num_draws = 0

    @property
    def waits(self) -> bool:
        """Whether the sequence should wait for each draw, so that drafts can follow it: now and then in any case."""
        return self._num_right_a_draw > _WORTH or self._num_draws % _EVERY < _TRIAL

    def add(self, num: int, num_right: int) -> None:
        """A draw came with so many drafts, and so many of them were right."""
        self._num_draws += 1
        self._num_right_a_draw += _NEWS * (num_right - self._num_right_a_draw)
        for _ in range(num_right):
            self.chance += _NEWS * (1 - self.chance)
        if num_right < num:
            self.chance -= _NEWS * self.chance
        if not num:
            self.chance += _DRIFT * (self._expected - self.chance)


class _Times:
    """How long something took lately in steps of each number of tokens, and a line between those."""

    def __init__(self) -> None:
        self._sizes: list[int] = []  # in order
        self._seconds: list[float] = []
        self._nums: list[int] = []  # steps of each size, so far

    def add(self, size: int, seconds: float) -> None:
        at = bisect_left(self._sizes, size)
        if at == len(self._sizes) or self._sizes[at] != size:
            self._sizes.insert(at, size)
            self._seconds.insert(at, seconds)
            self._nums.insert(at, 1)
            return
        known = self._seconds[at]
        self._nums[at] += 1
        if self._nums[at] <= _FIRST:
            self._seconds[at] = min(known, seconds)
        else:
            most = _MOST_NEWS * known
            self._seconds[at] += _STEP_NEWS * min(most, max(-most, seconds - known))

    def of(self, sizes: Floats) -> Floats:
        return np.interp(sizes, self._sizes, self._seconds) if self._sizes else np.zeros(len(sizes))


@dataclass
class _Gained:
    """Over the last steps in which ids were foretold: what they took, and what their tokens would have without."""

    own_s: float = 0.0
    seconds: float = 0.0
    num_draws: int = 0

    def add(self, num_draws: int, own_s: float, seconds: float) -> None:
        self.num_draws += num_draws
        self.own_s += own_s - _FADES * self.own_s
        self.seconds += seconds - _FADES * self.seconds


class Lengths:
    """Chooses the drafts of a step."""

    def __init__(self) -> None:
        self._computing, self._foretelling = _Times(), _Times()
        self._ages: dict[int, int] = {}  # size without drafts -> steps with some since the last one without
        self._gained: dict[int, _Gained] = {}  # by `num_draws.bit_length()`

    def add_step(self, num_tokens: int, seconds: float, foretelling_s: float = 0.0) -> None:
        """A step of so many tokens took so long in all, and so long to foretell ids; 0: it did not."""
        size = _rounded(num_tokens)
        self._ages[size] = 0
        self._computing.add(size, seconds - foretelling_s)
        if foretelling_s:
            self._foretelling.add(size, foretelling_s)

    def choose(self, drafts: Drafts, num_tokens: int, num_draws: int) -> list[int]:
        """How many drafts of each sequence to compute, of so many that there are.

        num_tokens, num_draws   of the step without drafts
        """
        counts = [0] * len(drafts)
        ranked = _ranked(drafts)
        size = _rounded(num_tokens)
        if not ranked or self._ages.get(size, _REFRESH) >= _REFRESH:
            return counts
        if num := _num_taken(self._rates(ranked, num_tokens, num_draws)):
            self._ages[size] += 1
            for _, _, i in ranked[:num]:
                counts[i] += 1
        return counts

    def add_gain(self, num_draws: int, num_emitted: int, seconds: float) -> None:
        """A step in which ids were foretold, and all sequences decoded, emitted so many tokens."""
        gained = self._gained.setdefault(num_draws.bit_length(), _Gained())
        gained.add(num_draws, num_emitted * self._alone_s(num_draws) / num_draws, seconds)

    def worth(self, drafts: Drafts, num_draws: int, enough: int = ENOUGH) -> float:
        """Tokens a second of decoding sequences if ids are foretold, over those if they are not, nor drafted.

        As it was with about as many sequences, where `enough` draws tell: of many guesses from times that vary, the
        best one is too good.
        """
        gained = self._gained.get(num_draws.bit_length())
        if gained and gained.num_draws >= enough:
            return gained.own_s / gained.seconds
        rates = self._rates(_ranked(drafts), num_draws, num_draws)
        return float(rates[_num_taken(rates)]) * self._alone_s(num_draws) / num_draws

    def forget_gains(self) -> None:
        self._gained.clear()

    def _alone_s(self, num_draws: int) -> float:
        return float(self._computing.of(np.array([float(num_draws)]))[0])

    def _rates(self, ranked: list[_Ranked], num_tokens: int, num_draws: int) -> Floats:
        """Tokens a second, with none, one, ... of the drafts."""
        emitted = num_draws + np.concatenate([[0], np.cumsum([-chance for chance, _, _ in ranked])])
        sizes = num_tokens + np.arange(len(emitted), dtype=np.float64)
        return emitted / (self._computing.of(sizes) + self._foretelling.of(sizes))


def _num_taken(rates: Floats) -> int:
    """How many drafts, by tokens a second with none, one, ... of them."""
    best = int(rates.argmax())
    return best if rates[best] >= _LEAST_GAIN * rates[0] else 0


def _ranked(drafts: Drafts) -> list[_Ranked]:
    """All drafts, the likeliest first."""
    return sorted((-(record.chance**place), place, i) for i, (record, num) in enumerate(drafts)
                  for place in range(1, num + 1))  # fmt: skip


def _rounded(num_tokens: int) -> int:
    """Sizes that are told apart: each up to 32, then a sixteenth of a power of two apart."""
    step = 1 << max(0, num_tokens.bit_length() - 5)
    return -(-num_tokens // step) * step
