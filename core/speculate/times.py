"""How long steps take by their number of tokens, beside each other.

What else a machine does makes all steps longer for seconds, and by more than drafts do. So steps are compared in pairs,
each with the one before it, and what is kept of a size is the logarithm of its time in a unit that nobody knows. That
suffices: which drafts pay does not hang on the unit. A pair moves both of its sizes, the less known one more, as a
Kalman filter would whose steps vary alike. Steps of one size in a row tell nothing.

A larger step is taken to be no shorter than a smaller one: where times say otherwise, which is chance, they are made
one (the pool-adjacent-violators algorithm). Else the best of many guesses is one that is too good.

Source: R. E. Barlow et al., "Statistical Inference under Order Restrictions", 1972.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

_MANY = 10  # steps of a size that count as much as any more: what they take changes slowly
_MOST = 0.7  # how far off a pair may seem: what is beyond that is some disturbance

Floats: TypeAlias = npt.NDArray[np.float64]


class Table:
    """A value for each size, and a line between those."""

    def __init__(self) -> None:
        self._sizes: list[int] = []  # in order
        self._values: list[float] = []
        self._nums: list[int] = []  # how much is known, at most `_MANY`
        self._rising: Floats | None = None  # None: to be made

    def find(self, size: int) -> int:
        """Its place. One that is new has the value that sizes beside it say."""
        at = bisect_left(self._sizes, size)
        if at == len(self._sizes) or self._sizes[at] != size:
            value = float(np.interp(size, self._sizes, self._values)) if self._sizes else 0.0
            self._sizes.insert(at, size)
            self._values.insert(at, value)
            self._nums.insert(at, 0)
        return at

    def move(self, at: int, by: float) -> None:
        """It has been seen once more."""
        self._values[at] += by
        self._nums[at] = min(_MANY, self._nums[at] + 1)
        self._rising = None

    @property
    def known(self) -> bool:
        return bool(self._sizes)

    def value(self, at: int) -> float:
        return self._values[at]

    def num(self, at: int) -> int:
        return self._nums[at]

    def of(self, sizes: Floats) -> Floats:
        """Past the largest size its value; where nothing is known 0."""
        return np.interp(sizes, self._sizes, self._values) if self._sizes else np.zeros(len(sizes))

    def rising(self, sizes: Floats) -> Floats:
        """As `of`, of values that are made to rise with sizes."""
        if self._rising is None:
            self._rising = rising(self._values, self._nums)
        return np.interp(sizes, self._sizes, self._rising) if self._sizes else np.zeros(len(sizes))


class Times:
    """What steps took to compute tokens, and to foretell ids where they did. `last`: of the last step, in all."""

    def __init__(self) -> None:
        self._computing = Table()  # logarithms
        self._foretelling = Table()  # beside computing in the same step
        self._before: tuple[int, float] | None = None  # size of the last step, and the logarithm of its time
        self.last = 1.0

    def add(self, size: int, computing_s: float, foretelling_s: float) -> None:
        """A step took so long; `foretelling_s` 0: it did not."""
        took = math.log(max(computing_s, 1e-9))
        self._compare(size, took)
        part = foretelling_s / max(computing_s, 1e-9)
        if foretelling_s:
            at = self._foretelling.find(size)
            self._foretelling.move(at, (part - self._foretelling.value(at)) / (1 + self._foretelling.num(at)))
        self._before = size, took
        self.last = self.computing(size) * (1 + part)

    def _compare(self, size: int, took: float) -> None:
        if self._before is None:
            self._computing.move(self._computing.find(size), took)
            return
        other, other_took = self._before
        if other == size:
            return
        table = self._computing
        table.find(size)
        at_other, at = table.find(other), table.find(size)  # the first one may have moved
        off = took - other_took - (table.value(at) - table.value(at_other))
        num, known = table.num(at), 1 / table.num(at_other)
        if not num:
            table.move(at, off)
            return
        off = min(_MOST, max(-_MOST, off))
        whole = 1 / num + known + 1
        table.move(at, off / num / whole)
        table.move(at_other, -off * known / whole)

    @property
    def foretold(self) -> bool:
        """Whether any step did."""
        return self._foretelling.known

    def computing(self, size: float) -> float:
        """Of a step of that size, without foretelling."""
        return float(np.exp(self._computing.rising(np.array([size])))[0])

    def whole(self, sizes: Floats) -> Floats:
        """With foretelling, where any step did."""
        return np.asarray(np.exp(self._computing.rising(sizes)) * (1 + self._foretelling.of(sizes)))


def rising(values: list[float], weights: list[int]) -> Floats:
    """Those values that rise or stay, and are nearest to these by weighted squares."""
    blocks: list[tuple[float, int, int]] = []  # mean, weight, how many
    for value, weight in zip(values, weights, strict=True):
        mean, total, num = value, weight, 1
        while blocks and blocks[-1][0] > mean:
            other, more, many = blocks.pop()
            mean = (mean * total + other * more) / (total + more)
            total, num = total + more, num + many
        blocks.append((mean, total, num))
    return np.repeat([mean for mean, _, _ in blocks], [num for _, _, num in blocks])
