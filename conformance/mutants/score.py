"""Tries the checks on the catalogue: how many wrong kernels are refused, and that no right one is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

from conformance import mustpass
from conformance.case import Case, Result
from conformance.exam import examine, pairs
from conformance.kernels import all_exams
from conformance.mutants.mutant import PROVIDER, Mutant

ENOUGH = {"wrong": 2, "cheat": 1, "right": 1}
"""Killers after which a kernel's fate is known."""


@dataclass(frozen=True)
class Fate:
    """What became of a kernel of the catalogue.

    killers   (check, family) of the cases that refused it; as many as it takes to know
    cases     that were run
    """

    mutant: Mutant
    killers: tuple[tuple[str, str], ...]
    cases: int

    @property
    def ok(self) -> bool:
        """Whether a wrong one was refused often enough, and a right one not at all."""
        if self.mutant.kind == "right":
            return not self.killers
        return len(self.killers) >= ENOUGH[self.mutant.kind]


def fate(mutant: Mutant, root: bytes, level: str = "kernel") -> Fate:
    """Run the cases of its row on a mutant, until its fate is known.

    level   of the cases that a right kernel faces; "quick": the first of each family and dtype, and its own claims
    """
    exam, target = all_exams()[mutant.row], mutant.target()
    killers: dict[tuple[str, str], None] = {}
    num = 0
    cases = [case for case, _ in pairs(exam, target)]
    if mutant.kind == "right":
        left_out = set(mustpass.names("kernel")) - set(mustpass.names(level))
        cases = [case for case in cases if case.name not in left_out]
    for case in _spread(cases):
        result, _ = examine(exam, case, target, PROVIDER, root)
        num += 1
        killers |= dict.fromkeys(_killers(case, result))
        if len(killers) >= ENOUGH[mutant.kind]:
            break
    return Fate(mutant, tuple(killers), num)


def _killers(case: Case, result: Result) -> Iterator[tuple[str, str]]:
    if result.status == "error":
        yield "error", case.family
    yield from dict.fromkeys((f.check, case.family) for f in result.findings if not f.ok)


def _spread(cases: Iterable[Case]) -> Iterator[Case]:
    """One case of every family, then a second one of each, and so on: fates are known sooner."""
    families: dict[str, list[Case]] = {}
    for case in cases:
        families.setdefault(case.family, []).append(case)
    for turn in zip_longest(*families.values()):
        yield from (case for case in turn if case is not None)
