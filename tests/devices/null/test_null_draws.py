"""Draws of the device without arithmetic: those that the reference makes of the logits that it stands for."""

from __future__ import annotations

import itertools

import pytest
import torch

from core.kernels.reference.sampling import sample
from devices.null.kernels import LIKELIER, NullKernels

SIZE = 300
NUM = 200


def drawn(kernels: NullKernels, logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    each = (torch.full((NUM,), temperature), torch.full((NUM,), top_k, dtype=torch.int32), torch.full((NUM,), top_p))
    seed = torch.tensor([[7, 9]], dtype=torch.int32).expand(NUM, 2)
    kernel = next(made.kernel for made in kernels.implementations() if made.row == "sample")
    ids: torch.Tensor = kernel(
        logits, *each, seed, torch.arange(NUM, dtype=torch.int32), greedy=False, top_k_max=max(top_k, 0)
    )
    return ids


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 2.0])
def test_as_the_reference(temperature: float) -> None:
    """But for draws that fall on a border between two tokens: sums are in float32 there."""
    tokens = torch.randint(0, SIZE, (NUM,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    kernels = NullKernels()
    kernels.embed(tokens, torch.zeros(SIZE, 4), first=0)
    nothing = kernels.gather_rows(torch.zeros(()).expand(NUM, 4), torch.arange(NUM, dtype=torch.int32))
    shape = nothing.new_zeros(()).expand(NUM, SIZE)
    real = torch.zeros(NUM, SIZE).scatter_(1, (tokens.long()[:, None] + 1) % SIZE, LIKELIER)
    for top_k, top_p in itertools.product([0, 1, 2, 40, SIZE, 1000], [1.0, 0.9, 0.5, 0.01]):
        found, wanted = (drawn(kernels, logits, temperature, top_k, top_p) for logits in (shape, real))
        assert found.dtype == torch.int32
        assert (found != wanted).sum() <= 2, (top_k, top_p)


def test_other_tokens_than_the_next_are_drawn() -> None:
    kernels = NullKernels()
    kernels.embed(torch.full((NUM,), 5, dtype=torch.int32), torch.zeros(SIZE, 4), first=0)
    kernels.gather_rows(torch.zeros(()).expand(NUM, 4), torch.arange(NUM, dtype=torch.int32))
    ids = drawn(kernels, torch.zeros(()).expand(NUM, SIZE), 1.0, 0, 1.0)
    assert 0.2 * NUM < (ids == 6).sum() < 0.5 * NUM  # e^5 of e^5 + 299
    assert len(set(ids.tolist())) > 80


def test_sample_is_the_reference_for_logits_that_are_real() -> None:
    logits = torch.randn(NUM, SIZE, generator=torch.Generator().manual_seed(1))
    each = (torch.ones(NUM), torch.zeros(NUM, dtype=torch.int32), torch.ones(NUM))
    seed = torch.tensor([[7, 9]], dtype=torch.int32).expand(NUM, 2)
    wanted = sample(logits, *each, seed, torch.arange(NUM, dtype=torch.int32), greedy=False, top_k_max=0)
    assert torch.equal(drawn(NullKernels(), logits, 1.0, 0, 1.0), wanted)
