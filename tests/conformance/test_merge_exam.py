"""The examination of attn_merge: what is expected, our own kernel, and the catalogue."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from conformance.case import Case
from conformance.draw import Draw
from conformance.exam import examine, pairs
from conformance.kernels.merge import AttnMergeExam
from conformance.mutants.mutant import Mutant
from conformance.mutants.score import fate
from conformance.target import host_target
from tests.conformance.examined import SEED, mutants_of, name_of
from tests.shares import one_in

EXAM = AttnMergeExam()
MUTANTS = mutants_of(["attn_merge"], "wrong", "cheat", "right")


def case_of(family: str, dtype: str = "bfloat16") -> Case:
    return Case.of("attn_merge", family, dtype=dtype, rows=6, heads=2, size=16)


def test_names_are_unique() -> None:
    names = [case.name for case in EXAM.cases()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("family", ["far", "empty"])
def test_a_side_that_weighs_nothing_leaves_the_other_as_it_is(family: str) -> None:
    case = case_of(family)
    inputs = EXAM.inputs(case, Draw(b"merge"))
    wanted = EXAM.expect(case, inputs, {})
    first = inputs["lse1"] > inputs["lse2"]
    assert first.any()
    assert not first.all()
    assert wanted["o"].bits is not None
    assert wanted["o"].bits.equal(torch.where(first[..., None], inputs["o1"], inputs["o2"]))
    assert wanted["lse"].bits is not None
    assert wanted["lse"].bits.equal(torch.maximum(inputs["lse1"], inputs["lse2"]))


def test_two_sides_that_saw_nothing_give_nothing() -> None:
    case = case_of("nothing")
    inputs = EXAM.inputs(case, Draw(b"merge"))
    assert inputs["o1"].isnan().all()
    wanted = EXAM.expect(case, inputs, {})
    assert wanted["o"].bits is not None
    assert wanted["o"].bits.eq(0).all()
    assert wanted["lse"].bits is not None
    assert wanted["lse"].bits.eq(-np.inf).all()


def test_our_own_eager_kernel_passes_every_case() -> None:
    target = host_target()
    results = [examine(EXAM, case, target, provider, SEED)[0] for case, provider in pairs(EXAM, target)]
    assert [r for r in results if r.status != "pass"] == []
    assert len(results) > 60


def test_there_are_enough_right_ones() -> None:
    assert len(mutants_of(["attn_merge"], "right")) >= 6


@pytest.mark.parametrize("mutant", one_in(3, MUTANTS), ids=[name_of(m) for m in MUTANTS])
def test_the_catalogue(mutant: Mutant) -> None:
    found = fate(mutant, SEED)
    assert found.ok, found
