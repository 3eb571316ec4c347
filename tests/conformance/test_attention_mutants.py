"""Every wrong kernel of attention is refused, and no right one."""

from __future__ import annotations

import pytest

from conformance.exam import examine, pairs
from conformance.kernels import all_exams
from conformance.mutants.mutant import PROVIDER, Mutant
from tests.conformance.examined import (  # noqa: F401  a test, run for ROWS
    SEED,
    mutants_of,
    name_of,
    test_wrong_kernels_are_refused,
)
from tests.shares import one_in

ROWS = ("attn_plan", "attn_paged")
RIGHT = mutants_of(ROWS, "right")


def test_there_are_enough_right_ones() -> None:
    assert len([m for m in RIGHT if m.row == "attn_paged"]) >= 6
    assert len([m for m in RIGHT if m.row == "attn_plan"]) >= 3


@pytest.mark.parametrize("mutant", one_in(3, RIGHT), ids=[name_of(m) for m in RIGHT])
def test_right_ones_pass_some_cases(mutant: Mutant) -> None:
    """Each another part of the cases."""
    number = RIGHT.index(mutant)
    target, exam = mutant.target(), all_exams()[mutant.row]
    some = [case for case, _ in pairs(exam, target) if case.family != "race"][number :: 4 * len(RIGHT)]
    results = [examine(exam, case, target, PROVIDER, SEED)[0] for case in some]
    assert [r for r in results if r.status not in ("pass", "unsupported")] == []
    assert results or mutant.row == "attn_plan"
