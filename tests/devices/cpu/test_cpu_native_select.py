"""Rows by number, ids and the likeliest token by each variant of the compiled kernels: what the references give."""

import math
import random

import pytest
import torch

from core.kernels.reference import gather as reference
from core.kernels.reference import sampling
from devices.cpu.native import library
from devices.cpu.native.select import SelectKernels

INF, NAN = math.inf, math.nan


@pytest.fixture(params=library.variants())
def kernels(request: pytest.FixtureRequest) -> SelectKernels:
    return SelectKernels(request.param)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("columns", [1, 7, 64, 3000])
def test_rows(columns: int, kernels: SelectKernels) -> None:
    """Of a few, and of so many that threads share them; also of a wider tensor."""
    table = torch.randn(50, columns + 3).bfloat16()[:, 1 : columns + 1]
    for num in (0, 1, 40):
        rows = torch.randint(0, 50, (num,), dtype=torch.int32)
        assert kernels.gather_rows(table, rows).equal(reference.gather_rows(table, rows))
    ids = ints(3, 10, 59, 60, 9, -1)
    assert kernels.embed(ids, table, first=10).equal(reference.embed(ids, table, first=10))


def test_rows_of_other_shapes(kernels: SelectKernels) -> None:
    rows = ints(2, 0, 2)
    for x in (torch.arange(5.0), torch.randn(3, 4, 5), torch.randn(4, 3).T):
        assert kernels.gather_rows(x, rows).equal(x[rows])


def test_ids(kernels: SelectKernels) -> None:
    last_ids = ints(0, 11, 12, 13)
    ids, rows = ints(5, 6, 7, 8), ints(0, 2, 0, 3)
    assert kernels.take_ids(ids, rows, last_ids).equal(reference.take_ids(ids, rows, last_ids))
    assert kernels.take_ids(ids[:1].expand(4), rows, last_ids).tolist() == [5, 12, 5, 13]
    put = kernels.put_ids(last_ids, ints(0, 3, 1), ints(90, 91, 92))
    assert put.data_ptr() == last_ids.data_ptr()
    assert put.tolist()[1:] == [92, 12, 91]


@pytest.mark.parametrize("num_drafts", [0, 1, 3, 8])
def test_drafts_that_are_right(num_drafts: int, kernels: SelectKernels) -> None:
    """Of few ids, so that some agree and others do not; also where nothing could be sampled."""
    generator = torch.Generator().manual_seed(num_drafts)
    drafts = torch.randint(-1, 2, (400, num_drafts), generator=generator).int()
    sampled = torch.randint(-1, 2, (400, num_drafts + 1), generator=generator).int()
    rows = torch.arange(sampled.numel()).int().view(sampled.shape)
    found, wanted = (f(drafts, sampled, rows) for f in (kernels.spec_verify, sampling.spec_verify))
    assert found[0].equal(wanted[0])
    assert found[1].equal(wanted[1])
    assert wanted[0].unique().tolist() == list(range(min(num_drafts, int(wanted[0].max())) + 1))


def likeliest(kernels: SelectKernels, logits: torch.Tensor) -> list[int]:
    """The ids, after they were compared with the reference's."""
    num = len(logits)
    zeros, ones = torch.zeros(num), torch.ones(num)
    limits = zeros, zeros.int(), ones, torch.zeros(num, 2).int(), zeros.int()
    ids = kernels.sample(logits, *limits, greedy=True, top_k_max=1)
    assert ids.dtype == torch.int32
    assert ids.equal(sampling.sample(logits, *limits, greedy=True, top_k_max=1))
    return [int(i) for i in ids]


def test_the_likeliest(kernels: SelectKernels) -> None:
    rows = [
        ([1.0, 3.0, 3.0, -2.0], 1),  # of equal ones the first
        ([-5.0, -1.5, -9.0, -1.5], 1),
        ([-0.0, 0.0, -1.0, -0.0], 0),  # zero has two signs
        ([-1.0, 0.0, -0.0, -2.0], 1),
        ([-1.0, -0.0, -2.0, -0.0], 1),
        ([-INF, -INF, 4.0, -INF], 2),
        ([-INF] * 4, -1),
        ([0.0, INF, 1.0, 2.0], -1),
        ([0.0, NAN, 1.0, 2.0], -1),
        ([0.0, 1.0, 2.0, -NAN], -1),
        ([1e-39, 1e-40, 0.0, -1e-39], 0),  # below the least normal number
    ]
    assert likeliest(kernels, torch.tensor([row for row, _ in rows]).bfloat16()) == [want for _, want in rows]


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 49152), (5, 37), (40, 2000)])
def test_the_likeliest_of_many(rows: int, columns: int, kernels: SelectKernels) -> None:
    wide = torch.randn(rows, columns + 5).bfloat16()
    likeliest(kernels, wide[:, :columns])
    bits = torch.randint(-(2**15), 2**15, (rows, columns), dtype=torch.int16)
    likeliest(kernels, bits.view(torch.bfloat16))
    coarse = torch.tensor(random.Random(1).choices([-1.0, 0.0, 2.0], k=rows * columns))
    likeliest(kernels, coarse.view(rows, columns).bfloat16())


def test_float32_and_draws_among_several_are_as_without_them(kernels: SelectKernels) -> None:
    logits, ones = torch.randn(6, 90), torch.ones(6)
    limits = ones, 3 * ones.int(), ones, torch.arange(12).view(6, 2).int(), ones.int()
    for dtype, greedy in ((torch.float32, True), (torch.bfloat16, False)):
        given = logits.to(dtype)
        got = kernels.sample(given, *limits, greedy=greedy, top_k_max=4)
        assert got.equal(sampling.sample(given, *limits, greedy=greedy, top_k_max=4))
