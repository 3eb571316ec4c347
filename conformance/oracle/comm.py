"""Collectives by their definition: what each rank gets, from what all ranks have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from conformance.draw import Floats
from conformance.oracle.move import Bits


def total(parts: Sequence[Floats]) -> Floats:
    """The sum over ranks, in float64: exact where the inputs make it so."""
    return np.asarray(np.sum(np.stack(parts), 0))


def gathered(parts: Sequence[Bits]) -> Bits:
    """Every rank's rows, in order of rank."""
    return np.concatenate(parts)


def exchanged(parts: Sequence[Bits], counts: Sequence[Sequence[int]], rank: int) -> Bits:
    """The rows that `rank` receives: counts[i][j] rows go from rank i to rank j, in order."""
    taken = []
    for sender, part in enumerate(parts):
        start = sum(counts[sender][:rank])
        taken.append(part[start : start + counts[sender][rank]])
    return np.concatenate(taken)
