"""Times of steps beside each other: what disturbs all steps does not count, and larger ones are no shorter."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.speculate.times import Times, rising


@given(st.lists(st.tuples(st.floats(-9, 9), st.integers(1, 10)), min_size=1, max_size=12))
def test_rising_is_the_nearest_that_rises(pairs: list[tuple[float, int]]) -> None:
    """Beside the min-max formula: at each place, the least over ends of the greatest over starts of weighted means."""
    values, weights = [value for value, _ in pairs], [weight for _, weight in pairs]

    def mean(start: int, end: int) -> float:
        return float(np.average(values[start : end + 1], weights=weights[start : end + 1]))

    places = range(len(values))
    wanted = [min(max(mean(start, end) for start in range(at + 1)) for end in places[at:]) for at in places]
    assert rising(values, weights) == pytest.approx(wanted, abs=1e-9)


def shape(size: int) -> float:
    return 1 + 0.05 * size


@pytest.mark.parametrize("drift", [0.0, 0.5])
def test_only_how_sizes_compare_is_learned(drift: float) -> None:
    """Of a machine that is slower by a half and more for a while, and whose steps vary by a tenth beside that."""
    rng, times, level = random.Random(1), Times(), 0.0
    for _ in range(3000):
        level = 0.95 * level + rng.gauss(0, drift * math.sqrt(1 - 0.95**2))
        size = rng.choice([1, 4, 9, 30])
        times.add(size, shape(size) * math.exp(level + rng.gauss(0, 0.1)), 0.0)
    for size in (1, 4, 9, 30):
        assert times.computing(size) / times.computing(1) == pytest.approx(shape(size) / shape(1), rel=0.12)
    assert times.computing(9) <= times.computing(17) <= times.computing(30) == times.computing(99)


def test_steps_of_one_size_tell_nothing() -> None:
    times = Times()
    times.add(1, 1.0, 0.0)
    times.add(5, 2.0, 0.0)
    for _ in range(100):
        times.add(5, 50.0, 0.0)
    assert times.computing(5) / times.computing(1) == pytest.approx(2.0)


def test_one_disturbed_step_moves_what_is_known_little() -> None:
    times = Times()
    for _ in range(20):
        times.add(1, 1.0, 0.0)
        times.add(5, 2.0, 0.0)
    times.add(1, 1.0, 0.0)
    times.add(5, 200.0, 0.0)
    assert times.computing(5) / times.computing(1) == pytest.approx(2.0, rel=0.2)


def test_foretelling_is_a_part_of_the_same_step() -> None:
    times = Times()
    assert not times.foretold
    times.add(1, 1.0, 0.0)
    assert not times.foretold
    for factor in (1.0, 3.0, 0.5):
        times.add(4, 2.0 * factor, 0.5 * factor)
    assert times.foretold
    assert times.whole(np.array([4.0]))[0] == pytest.approx(1.25 * times.computing(4))
    assert times.last == pytest.approx(times.whole(np.array([4.0]))[0])
