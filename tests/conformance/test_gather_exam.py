"""The examination of rows chosen by index, and of scattered rows: oracle, kernels, and the catalogue of wrong ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from conformance.draw import Draw, from_bits
from conformance.judge import raw
from conformance.oracle import move
from conformance.target import open_target
from tests.conformance.examined import (  # noqa: F401  tests, run for ROWS
    failures,
    test_right_kernels_pass,
    test_wrong_kernels_are_refused,
)

ROWS = ("embed", "gather_rows", "take_ids", "put_ids", "copy_rows")
TABLE = np.arange(1, 7, dtype=np.uint16).reshape(3, 2)


def test_the_oracle_knows_foreign_ids() -> None:
    got = move.embed([9, 10, 12, 13, -(2**31)], TABLE, 10)
    assert got.tolist() == [[0, 0], [1, 2], [5, 6], [0, 0], [0, 0]]


def test_the_oracle_takes_and_puts() -> None:
    assert move.gather_rows(TABLE, [2, 0, 2]).tolist() == [[5, 6], [1, 2], [5, 6]]
    assert move.take_ids([7, 8, 9], [0, 2, 1], [99, 10, 20]) == [7, 20, 10]
    assert move.put_rows(TABLE, [-1, 0], TABLE[1:]).tolist() == [[5, 6], [3, 4], [5, 6]]
    assert TABLE[0].tolist() == [1, 2]


def test_the_oracle_reads_pages_before_it_writes() -> None:
    pool = np.arange(8, dtype=np.uint8).reshape(2, 4)  # pages along axis 1
    got = move.copy_pages(pool, pool, [1, 2, 3], [0, 1, 2], 1)
    assert got.tolist() == [[0, 0, 1, 2], [4, 4, 5, 6]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int8])
def test_any_bits_are_kept_by_tensors(dtype: torch.dtype) -> None:
    x = Draw(b"seed").bits(dtype, 300, 7)
    assert (raw(from_bits(raw(x), dtype)) == raw(x)).all()
    assert len(np.unique(raw(x))) > 150
    if dtype.is_floating_point:
        assert x.isnan().any()


@pytest.mark.parametrize("row", ROWS)
def test_the_cpu_passes(row: str) -> None:
    target = open_target("cpu")
    for provider in target.providers(row):
        assert not failures(row, target, provider)
