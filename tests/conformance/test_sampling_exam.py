"""The examination of what draws: its oracle, its kernels, and the catalogue of wrong ones."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.exam import examine, pairs
from conformance.kernels import all_exams
from conformance.mutants import catalogue
from conformance.mutants.mutant import Mutant
from conformance.oracle import sampling
from conformance.target import open_target
from tests.conformance.examined import (  # noqa: F401  tests, run for ROWS
    test_wrong_kernels_are_refused,
)
from tests.shares import one_in

ROWS = ("sample", "penalize", "add_bias", "min_p", "apply_mask", "logprobs_topk", "spec_verify")
SEED = b"mutants"
RIGHT = [m for m in catalogue() if m.row in ROWS and m.kind == "right"]


def test_the_oracle_draws_in_proportion() -> None:
    """Frequencies of what is admissible over evenly spread uniform numbers are the probabilities."""
    logits = np.array([0.0, np.log(2.0), np.log(5.0), -np.inf])
    drawn = [sampling.admissible(logits, 1.0, 0, 1.0, (i + 0.5) / 800, 0.0) for i in range(800)]
    assert all(len(ids) == 1 for ids in drawn)
    counts = [sum(ids == {token} for ids in drawn) for token in range(4)]
    assert counts == [100, 200, 500, 0]


def test_the_oracle_cuts_by_rank_and_by_weight() -> None:
    logits = np.log(np.array([1.0, 4.0, 2.0, 3.0]))

    def kept(top_k: int, top_p: float) -> set[int]:
        return {t for i in range(100) for t in sampling.admissible(logits, 1.0, top_k, top_p, (i + 0.5) / 100, 0.0)}

    assert kept(0, 1.0) == {0, 1, 2, 3}
    assert kept(2, 1.0) == {1, 3}
    assert kept(0, 0.65) == {1, 3}
    assert kept(0, 0.75) == {1, 2, 3}
    assert kept(3, 0.75) == {1, 3}, "top_p is of what top_k leaves: 7 of 9"
    assert sampling.admissible(np.array([1.0, 3.0, 3.0]), 0.0, 0, 1.0, 0.9, 0.0) == {1}
    assert sampling.admissible(np.array([1.0, np.nan]), 0.0, 0, 1.0, 0.9, 0.0) == {-1}


def test_near_a_boundary_either_neighbour_is_right() -> None:
    logits = np.zeros(4)
    assert sampling.admissible(logits, 1.0, 0, 1.0, 0.25, 1e-6) == {0, 1}
    assert sampling.admissible(logits, 1.0, 0, 1.0, 0.2501, 1e-6) == {1}
    assert sampling.admissible(logits, 1.0, 0, 0.5, 0.999999, 1e-7) == {1, 2}, "and so for the nucleus"


@pytest.mark.parametrize("mutant", one_in(4, RIGHT), ids=[f"{m.row}-{m.name}" for m in RIGHT])
def test_right_kernels_pass_one_case_of_each_family(mutant: Mutant) -> None:
    exam, target, families = all_exams()[mutant.row], mutant.target(), set()
    for case, provider in pairs(exam, target):
        if case.family not in families and case.get("vocab", 0) < 1000:
            families.add(case.family)
            result, _ = examine(exam, case, target, provider, SEED)
            assert result.status == "pass", result
    assert len(families) >= 2


@pytest.mark.parametrize("row", ROWS)
def test_the_cpu_passes(row: str) -> None:
    target, exam = open_target("cpu"), all_exams()[row]
    able = [(case, by) for case, by in pairs(exam, target) if exam.refusal(case, target, by) is None]
    small = [(case, by) for case, by in able if case.get("vocab", 0) < 1000]
    assert small
    for case, provider in small[::3]:
        result, _ = examine(exam, case, target, provider, SEED)
        assert result.status == "pass", result
