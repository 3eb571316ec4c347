"""The CPU's sampler against the reference: the same ids, bit for bit."""

import math

import pytest
import torch

from core.kernels.reference import sampling as reference
from devices.cpu import sampling
from tests.core.kernels.reference.draws import params


def both(logits, *, greedy=False, top_k_max=0, **given):
    arguments = (logits, *params(len(logits), **given))
    ours = sampling.sample(*arguments, greedy=greedy, top_k_max=top_k_max)
    assert ours.dtype == torch.int32
    assert ours.equal(reference.sample(*arguments, greedy=greedy, top_k_max=top_k_max))
    return ours


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_greedy(dtype):
    logits = torch.randn(50, 300).to(dtype)
    logits[0], logits[1, 7], logits[2], logits[3, 5] = 1, math.nan, -math.inf, math.inf
    # Rounding makes ties at the top common here.
    logits[4:20] = (logits[4:20] * 2).round()
    assert both(logits, greedy=True)[:4].tolist() == [0, -1, -1, -1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [7, 1003])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (3, 1.0), (5, 0.7), (0, 0.9), (-1, 0.05), (900, 0.999)])
def test_draws(dtype, size, top_k, top_p):
    logits = (torch.randn(40, size) * 2).to(dtype)
    logits[3, 2], logits[4, :6] = math.nan, -math.inf
    temperature = [0.0, 0.2, 1.0, 1.5] * 10
    both(logits, temperature=temperature, top_k=min(top_k, size), top_p=top_p)


def test_top_p_beyond_the_prefix_ranks_everything():
    # Flat rows: a thousand tokens are needed for 95%.
    logits = torch.randn(10, 3000) * 0.01
    assert sampling.PREFIX < 0.9 * 3000
    both(logits, top_p=0.95)


@pytest.mark.parametrize("size", [50, 2000])
def test_ties_at_the_limit(size):
    # Of 2000 tokens more are equal at the limit than there are candidates to spare.
    both(torch.randn(100, size).round(), top_k=7, top_p=0.8, top_k_max=7)
    both(torch.zeros(20, size), top_k=3)
    both(torch.zeros(20, size), top_p=0.4)


def test_mixed_rows_with_a_promise_of_top_k_max():
    logits = torch.randn(60, 400)
    both(logits, top_k=[0, 1, 20] * 20, top_p=[1.0, 0.5, 0.9] * 20, temperature=[1.0, 0.0, 0.7, 2.0] * 15, top_k_max=20)


@pytest.mark.parametrize("rows", [1, 7, 60])
def test_some_rows_at_a_time(monkeypatch, rows):
    monkeypatch.setattr(sampling, "LOGIT_BYTES", 4 * 400 * rows)
    logits = torch.randn(60, 400)
    both(logits, greedy=True)
    both(logits, top_k=[0, 1, 20] * 20, top_p=[1.0, 0.5, 0.9] * 20, temperature=[1.0, 0.0, 0.7, 2.0] * 15)
