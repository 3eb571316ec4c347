"""Tries the checks on many kernels of the catalogue at once, one process per processor."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from conformance.mutants.mutant import Mutant
from conformance.mutants.score import Fate, fate

ROOT = b"mutants"
"""The fates of the catalogue are those under this seed."""


def fates(mutants: Sequence[Mutant], level: str, progress: Callable[[int, int], None]) -> list[Fate]:
    """The fate of each, in order; right kernels face the cases of `level`."""
    found: dict[int, Fate] = {}
    num = min(len(mutants), os.cpu_count() or 1)
    with ProcessPoolExecutor(num, mp_context=get_context("spawn"), initializer=_alone) as pool:
        running = {pool.submit(_fate, m.row, m.name, level): i for i, m in enumerate(mutants)}
        for done in as_completed(running):
            killers, cases = done.result()
            found[running[done]] = Fate(mutants[running[done]], killers, cases)
            progress(len(found), len(mutants))
    return [found[i] for i in range(len(mutants))]


def _alone() -> None:
    import torch

    torch.set_num_threads(1)


def _fate(row: str, name: str, level: str) -> tuple[tuple[tuple[str, str], ...], int]:
    from conformance.mutants import catalogue

    mutant = next(m for m in catalogue() if (m.row, m.name) == (row, name))
    made = fate(mutant, ROOT, level)
    return made.killers, made.cases
