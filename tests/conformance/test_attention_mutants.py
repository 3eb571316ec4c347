"""Every wrong kernel of attention is refused, and no right one."""

from __future__ import annotations

import pytest

from conformance.exam import examine, pairs
from conformance.kernels import all_exams
from conformance.mutants.mutant import PROVIDER, Mutant
from conformance.mutants.score import fate
from tests.conformance.examined import SEED, mutants_of, name_of

ROWS = ("attn_plan", "attn_paged")
RIGHT = mutants_of(ROWS, "right")


def test_there_are_enough_right_ones() -> None:
    assert len([m for m in RIGHT if m.row == "attn_paged"]) >= 6
    assert len([m for m in RIGHT if m.row == "attn_plan"]) >= 3


@pytest.mark.parametrize("mutant", mutants_of(ROWS, "wrong", "cheat"), ids=name_of)
def test_wrong_ones_are_refused(mutant: Mutant) -> None:
    found = fate(mutant, SEED)
    assert found.ok, found


@pytest.mark.parametrize("number", range(len(RIGHT)), ids=[name_of(m) for m in RIGHT])
def test_right_ones_pass_some_cases(number: int) -> None:
    """Each another part of the cases."""
    mutant = RIGHT[number]
    target, exam = mutant.target(), all_exams()[mutant.row]
    some = [case for case, _ in pairs(exam, target) if case.family != "race"][number :: 4 * len(RIGHT)]
    results = [examine(exam, case, target, PROVIDER, SEED)[0] for case in some]
    assert [r for r in results if r.status not in ("pass", "unsupported")] == []
    assert results or mutant.row == "attn_plan"
