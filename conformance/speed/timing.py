"""Honest times of calls: rotating inputs, a control in turns with what is measured, and how sure the result is.

Source for the confidence interval: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapter 13.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from core.plugin.device import Device

MIN_SAMPLE_S = 2e-3
NUM_SAMPLES = 30
UNSTABLE_CV = 0.05
_NUM_RESAMPLES = 1000


@dataclass(frozen=True)
class Times:
    """Seconds of one call.

    low, high   of the median, 95% confidence
    cv          of the control: standard deviation / mean; more than UNSTABLE_CV means that the machine was not quiet
    """

    median: float
    low: float
    high: float
    cv: float

    @property
    def stable(self) -> bool:
        return self.cv <= UNSTABLE_CV


def measure(
    device: Device, calls: Sequence[Callable[[], Any]], control: Callable[[], Any], num_samples: int = NUM_SAMPLES
) -> Times:
    """Time calls, each with inputs of its own, in rounds of A B B A with the control."""
    per_sample = _repeats(device, calls)
    per_control = _repeats(device, [control])
    samples: list[float] = []
    controls: list[float] = []
    turn = 0
    while len(samples) < num_samples:
        for kind in "ABBA":
            if kind == "A":
                chosen = [calls[(turn + i) % len(calls)] for i in range(per_sample)]
                samples.append(_seconds(device, chosen) / per_sample)
                turn += per_sample
            else:
                controls.append(_seconds(device, [control] * per_control) / per_control)
    low, high = _interval(samples)
    cv = float(np.std(controls) / np.mean(controls))
    return Times(float(np.median(samples)), low, high, cv)


def _repeats(device: Device, calls: Sequence[Callable[[], Any]]) -> int:
    """How many calls make a sample that the clock can tell, after a warm-up."""
    for call in calls:
        call()
    count = 1
    while count < 1 << 16:
        took = _seconds(device, [calls[i % len(calls)] for i in range(count)])
        if took >= MIN_SAMPLE_S:
            return count
        count *= 2
    return count


def _seconds(device: Device, calls: Sequence[Callable[[], Any]]) -> float:
    device.synchronize()
    began = time.perf_counter()
    for call in calls:
        call()
    device.synchronize()
    return time.perf_counter() - began


def _interval(samples: Sequence[float]) -> tuple[float, float]:
    chosen = np.random.default_rng(0).choice(np.asarray(samples), (_NUM_RESAMPLES, len(samples)))
    low, high = np.quantile(np.median(chosen, 1), (0.025, 0.975))
    return float(low), float(high)
