"""The examination of collectives: its oracle, its processes, kernels, and the catalogue of wrong ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from conformance import ranks
from conformance.case import Case
from conformance.draw import Draw
from conformance.exam import examine
from conformance.kernels import all_exams
from conformance.kernels.comm import summands
from conformance.oracle import comm
from conformance.target import host_target, open_target
from core.kernels.bind import REFERENCE
from core.kernels.row import Implementation
from tests.conformance.examined import (  # noqa: F401  tests, run for ROWS
    SEED,
    failures,
    test_right_kernels_pass,
    test_wrong_kernels_are_refused,
)

ROWS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all_v", "broadcast", "send", "recv")
SMALL = Case.of("all_reduce", "exact", ranks=(0, 1), dtype="float32", shape=(7,))


@pytest.fixture(scope="module", autouse=True)
def _no_processes_stay() -> Iterator[None]:
    yield
    ranks.stop()


def test_the_oracle_sums_and_exchanges() -> None:
    parts = [np.arange(4, dtype=np.uint8), np.arange(10, 13, dtype=np.uint8)]
    assert comm.total([np.ones(2), np.array([1.0, 3.0])]).tolist() == [2, 4]
    assert comm.gathered(parts).tolist() == [0, 1, 2, 3, 10, 11, 12]
    counts = [[1, 3], [2, 1]]
    assert comm.exchanged(parts, counts, 0).tolist() == [0, 10, 11]
    assert comm.exchanged(parts, counts, 1).tolist() == [1, 2, 3, 12]


@pytest.mark.parametrize("family", ["exact", "scaled"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_sums_are_exact_in_any_order(family: str, dtype: str) -> None:
    case = Case.of("all_reduce", family, ranks=(0, 1, 2), dtype=dtype)
    a, b, c = summands(Draw(b"seed"), case, 5000).values()
    whole = (a.double() + b.double() + c.double()).to(a.dtype)
    assert whole.isfinite().all()
    for total in ((a + b) + c, (c + b) + a, (a + c) + b):
        assert total.equal(whole)


def _fails_on_one_rank(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    if torch.distributed.get_rank() == 1:
        raise ValueError("rank 1 will not")
    return x


def test_a_rank_that_fails_is_told_and_the_next_case_runs() -> None:
    exam = all_exams()["all_reduce"]
    failing = host_target(Implementation("all_reduce", _fails_on_one_rank, "test"))
    result, _ = examine(exam, SMALL, failing, "test", SEED)
    assert result.status == "error"
    assert "rank 1: ValueError: rank 1 will not" in result.message
    assert examine(exam, SMALL, host_target(), REFERENCE, SEED)[0].status == "pass"


def test_a_machine_with_too_few_devices_does_not_support_a_case() -> None:
    host = host_target()
    one = replace(host, facts=replace(host.facts, host_memory=False, count=2))
    assert ranks.refusal(one, (0, 1)) is None
    assert ranks.refusal(one, (0, 1, 2)) == "3 devices are needed, this machine has 2"
    three = Case.of("all_reduce", "exact", ranks=(0, 1, 2), dtype="float32", shape=(7,))
    assert examine(all_exams()["all_reduce"], three, one, REFERENCE, SEED)[0].status == "unsupported"


@pytest.mark.heavy
@pytest.mark.parametrize("row", ROWS)
def test_the_cpu_passes(row: str) -> None:
    assert not failures(row, open_target("cpu"), REFERENCE)
