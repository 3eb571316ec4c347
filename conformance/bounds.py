"""Constants of the error bounds, and what they stand for.

u   unit roundoff of the dtype that is stored; eta   half its smallest subnormal
W   unit roundoff of float32 accumulators

Sources: Higham 2002, "Accuracy and Stability of Numerical Algorithms", chapters 3 and 4 (u, gamma_n);
Higham and Mary 2019, doi 10.1137/18M1226312 (why sums grow with the square root of their length).
"""

from __future__ import annotations

import math

ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}
SMALLEST = {"bfloat16": 2.0**-133, "float16": 2.0**-24, "float32": 2.0**-149}
LARGEST = {"bfloat16": 3.3895313892515355e38, "float16": 65504.0, "float32": 3.4028234663852886e38}

W = 2.0**-24

EXP_ERROR = 2.0**-21
"""Relative error allowed for exp, log and tanh in float32: eight times W, what fast approximations reach."""

RMS_P95, RMS_MAX = 1.5, 2.0
"""Of rows, how much greater their rms error may be than that of our own eager kernel on the CPU."""

BIAS = 0.1
"""Part of u by which results may lie off towards zero, or away from it, on average."""

SIGMAS = 5
"""Standard errors by which a mean of random errors may lie off: one in a million does."""

MIN_FOR_BIAS = 4096
MIN_ROW_FOR_RMS = 16
MIN_ROWS_FOR_P95 = 20
"""Of fewer, one row is more than 5%."""


def eta(dtype: str) -> float:
    """Half the smallest subnormal number."""
    return SMALLEST[dtype] / 2


def kappa(length: int) -> float:
    """How many W a float32 sum of `length` terms may be off, relative to the sum of magnitudes."""
    return 4 * math.sqrt(length)
