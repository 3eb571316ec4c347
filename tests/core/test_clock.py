"""Clocks: one that follows the machine, and one that follows the test."""

import time

import pytest

from core.clock import ManualClock, SystemClock


def test_the_system_clock_follows_the_machine() -> None:
    before, now, after = time.monotonic(), SystemClock().now_s(), time.monotonic()
    assert before <= now <= after


def test_a_manual_clock_moves_only_when_told_to_and_never_back() -> None:
    clock = ManualClock(5.0)
    assert clock.now_s() == 5.0
    clock.advance(0.25)
    assert clock.now_s() == 5.25
    with pytest.raises(AssertionError):
        clock.advance(-1)
