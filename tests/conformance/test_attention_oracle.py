"""The float64 oracle of attention: beside torch's own attention, and small sums by hand."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from conformance.draw import Draw
from conformance.oracle import attention as oracle


def drawn(queries, length, heads=(4, 2), size=8):
    draw = Draw(b"oracle")
    return draw.normal(queries, heads[0], size), *draw.normal(2, length, heads[1], size)


@pytest.mark.parametrize("heads", [(1, 1), (4, 2), (6, 1)])
@pytest.mark.parametrize(("queries", "length"), [(1, 1), (1, 9), (5, 5), (4, 11)])
@pytest.mark.parametrize("window", [None, 1, 3])
def test_beside_torch(heads, queries, length, window):
    q, k, v = drawn(queries, length, heads)
    got = oracle.attention(q, k, v, scale=0.3, window=window)
    at, entry = torch.arange(length - queries, length)[:, None], torch.arange(length)
    mask = (entry <= at) & (entry > at - (window or length))
    tensors = [torch.from_numpy(x).transpose(0, 1)[None] for x in (q, k, v)]
    o = F.scaled_dot_product_attention(*tensors, attn_mask=mask, scale=0.3, enable_gqa=True)[0].transpose(0, 1)
    np.testing.assert_allclose(got.o, o.numpy(), rtol=1e-12, atol=1e-13)
    keys = tensors[1].repeat_interleave(heads[0] // heads[1], 1)
    scores = (tensors[0] @ keys.mT * 0.3).masked_fill(~mask, -math.inf)
    np.testing.assert_allclose(got.lse, scores.logsumexp(-1)[0].T.numpy(), rtol=1e-12)
    np.testing.assert_array_equal(got.num_keys, mask.sum(1)[:, None].expand(-1, heads[0]).numpy())


def test_two_keys_by_hand():
    q, k = np.array([[[2.0]]]), np.array([[[1.0]], [[-3.0]]])
    v = np.array([[[5.0]], [[-7.0]]])
    got = oracle.attention(q, k, v, scale=0.5, softcap=2.0)
    scores = [2 * math.tanh(0.5), 2 * math.tanh(-1.5)]
    p = 1 / (1 + math.exp(scores[1] - scores[0]))
    assert got.o.item() == pytest.approx(5 * p - 7 * (1 - p), rel=1e-14)
    assert got.spread.item() == pytest.approx(5 * p + 7 * (1 - p), rel=1e-14)
    assert got.power.item() == pytest.approx((5 * p) ** 2 + (7 * (1 - p)) ** 2, rel=1e-14)
    assert got.lse.item() == pytest.approx(math.log(sum(map(math.exp, scores))), rel=1e-14)
    assert got.total.item() == pytest.approx(1 / p, rel=1e-14)
    assert (got.values.item(), got.reach.item(), got.num_keys.item()) == (12, 3, 2)


def test_blocks_of_queries_change_nothing(monkeypatch):
    q, k, v = drawn(20, 50)
    whole = oracle.attention(q, k, v, scale=1.0, window=7)
    monkeypatch.setattr(oracle, "_SCORES", 1)
    np.testing.assert_allclose(oracle.attention(q, k, v, scale=1.0, window=7).o, whole.o, rtol=1e-13)


def test_what_lies_before_every_window_may_be_nan():
    q, k, v = drawn(3, 20)
    want = oracle.attention(q, k, v, scale=1.0, window=4)
    k[:14], v[:14] = np.nan, np.nan
    np.testing.assert_array_equal(oracle.attention(q, k, v, scale=1.0, window=4).o, want.o)


def test_halves_merged_are_the_whole():
    q, k, v = drawn(1, 10)
    whole = oracle.attention(q, k, v, scale=1.0)
    first, rest = (oracle.attention(q, k[part], v[part], scale=1.0) for part in (slice(3), slice(3, None)))
    o, lse, spread = oracle.merge(first.o, first.lse, rest.o, rest.lse)
    np.testing.assert_allclose(o, whole.o, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(lse, whole.lse, rtol=1e-13)
    assert (spread >= np.abs(o)).all()


def test_sides_that_saw_nothing():
    o, lse = np.full((1, 1, 2), 3.0), np.zeros((1, 1))
    nan, least = np.full_like(o, np.nan), lse - np.inf
    for merged in (oracle.merge(o, lse, nan, least), oracle.merge(nan, least, o, lse)):
        assert (merged[0].tolist(), merged[1].tolist()) == (o.tolist(), lse.tolist())
    o, lse, _ = oracle.merge(nan, least, nan, least)
    assert (o.tolist(), lse.tolist()) == ([[[0.0, 0.0]]], [[-math.inf]])
