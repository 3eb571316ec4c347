"""What tests of examinations share; among it tests, which run for the rows that the importing file has in ROWS."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from conformance.case import Case, Result
from conformance.exam import examine, pairs
from conformance.kernels import all_exams
from conformance.mutants import catalogue
from conformance.mutants.mutant import Mutant
from conformance.mutants.score import fate
from conformance.target import Target, open_target
from tests.plugins import install_hostile

SEED = b"mutants"


def mutants_of(rows: Sequence[str], *kinds: str) -> list[Mutant]:
    return [m for m in catalogue() if m.row in rows and m.kind in kinds]


def name_of(mutant: Mutant) -> str:
    return f"{mutant.row}-{mutant.name}"


def one_of_each_family(row: str, target: Target, provider: str) -> list[Case]:
    """A case of every family, of one dtype or another."""
    families: dict[str, list[Case]] = {}
    for case, by in pairs(all_exams()[row], target):
        if by == provider and all_exams()[row].refusal(case, target, provider) is None:
            families.setdefault(case.family, []).append(case)
    return [cases[i % len(cases)] for i, cases in enumerate(families.values())]


def failures(row: str, target: Target, provider: str) -> list[Result]:
    """Of one case of each family, those that do not pass."""
    exam = all_exams()[row]
    results = [examine(exam, case, target, provider, SEED)[0] for case in one_of_each_family(row, target, provider)]
    assert len(results) >= 2
    return [result for result in results if result.status != "pass"]


def failures_of(mutant: Mutant) -> list[Result]:
    target = mutant.target()
    return failures(mutant.row, target, target.providers(mutant.row)[0])


def test_wrong_kernels_are_refused(wrong_kernel: Mutant) -> None:
    met = fate(wrong_kernel, SEED)
    assert met.ok, met.killers


def test_right_kernels_pass(right_kernel: Mutant) -> None:
    assert not failures_of(right_kernel)


def test_another_device_passes(examined_row: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install_hostile(monkeypatch, tmp_path / "plugin")
    target = open_target("hostile")
    assert not failures(examined_row, target, target.providers(examined_row)[0])
