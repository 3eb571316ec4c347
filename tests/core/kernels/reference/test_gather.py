"""Rows by index, against lists."""

import torch

from core.kernels.reference import gather


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def test_embed_gives_zeros_for_ids_held_elsewhere():
    table = torch.randn(5, 3, dtype=torch.bfloat16)
    table[0], table[4] = float("nan"), float("inf")  # the rows that clamped ids would read
    x = gather.embed(int32(9, 11, 12, 13, 15, 0, 2**31 - 1), table, first=10)
    zero = torch.zeros(3, dtype=torch.bfloat16)
    assert x.equal(torch.stack([zero, table[1], table[2], table[3], zero, zero, zero]))


def test_gather_rows():
    x = torch.randn(4, 2, 3)
    assert gather.gather_rows(x, int32(3, 0, 3)).equal(torch.stack([x[3], x[0], x[3]]))


def test_take_ids_keeps_the_id_at_the_null_row():
    assert gather.take_ids(int32(1, 2, 3), int32(0, 2, 1), int32(70, 80, 90)).tolist() == [1, 90, 80]


def test_put_ids_writes_in_place():
    last_ids = int32(0, 1, 2, 3, 4)
    out = gather.put_ids(last_ids, int32(3, 0, 1, 0), int32(30, 77, 10, 88))
    assert out is last_ids
    assert out.dtype == torch.int32
    assert out[1:].tolist() == [10, 2, 30, 4]
