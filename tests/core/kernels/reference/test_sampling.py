"""Sampling references against float64 oracles written from the definitions."""

import math
import random

import pytest
import torch

from core.kernels.reference import sampling
from tests.core.kernels.reference.draws import chi_square_limit, oracle, params


def sample(logits, top_k_max=0, greedy=False, **given):
    return sampling.sample(logits, *params(len(logits), **given), greedy=greedy, top_k_max=top_k_max)


def test_philox_known_answers():
    """Source: Random123, tests/kat_vectors, philox4x32 with 10 rounds."""
    cases = [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([2**32 - 1] * 4, [2**32 - 1] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ]
    for counter, key, want in cases:
        words = sampling.philox(*(tuple(torch.tensor([w]) for w in ws) for ws in (counter, key)))
        assert [int(w) for w in words] == want


def test_uniform_is_uniform_and_below_one():
    seeds = torch.randint(-(2**31), 2**31, (100000, 2), dtype=torch.int64).int()
    u = sampling.uniform(seeds, torch.full((100000,), -1, dtype=torch.int32))
    assert 0 <= u.min() < 1e-3
    assert 1 - 1e-3 < u.max() < 1
    counts = torch.histc(u, 50, 0, 1)
    assert ((counts - 2000) ** 2 / 2000).sum() < chi_square_limit(49)


def test_greedy_takes_the_lowest_of_equals():
    logits = torch.tensor([[1.0, 3, 3, 2], [-5, -5, -5, -5], [0.0, -0.0, 0, -1], [-math.inf, -9, -math.inf, -9]])
    for dtype in (torch.float32, torch.bfloat16):
        assert sample(logits.to(dtype), greedy=True).tolist() == [1, 0, 0, 1]
        assert sample(logits.to(dtype), temperature=0.0).tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize("greedy", [True, False])
def test_rows_without_a_finite_maximum_give_minus_one_and_leave_others_alone(greedy):
    logits = torch.randn(5, 20)
    logits[1, 7] = math.nan
    logits[2] = -math.inf
    logits[3, 3] = math.inf
    ids = sample(logits, greedy=greedy, top_k=4, top_k_max=8)
    assert ids.dtype == torch.int32
    assert ids[1:4].tolist() == [-1, -1, -1]
    alone = sample(logits[[0, 4]], greedy=greedy, top_k=4, top_k_max=8, counters=[0, 4])
    assert ids[[0, 4]].equal(alone)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, 0, 1.0), (0.6, -1, 1.0), (1.7, 5, 1.0), (1.0, 0, 0.8), (0.8, 12, 0.7), (1.0, 1, 1.0), (1.0, 0, 1e-6)],
)
def test_draws_follow_the_oracle(temperature, top_k, top_p):
    draws = 60000
    row = torch.randn(40, generator=torch.Generator().manual_seed(3)) * 2
    row[4] = -math.inf
    ids = sample(row.expand(draws, -1), temperature=temperature, top_k=top_k, top_p=top_p)
    want = torch.tensor(oracle(row.tolist(), temperature, top_k, top_p), dtype=torch.float64)
    counts = torch.bincount(ids, minlength=40)
    assert counts[want == 0].sum() == 0
    likely = want * draws >= 5
    if likely.sum() > 1:
        expected = (want * draws)[likely]
        statistic = ((counts[likely] - expected) ** 2 / expected).sum()
        assert statistic < chi_square_limit(int(likely.sum()) - 1)


@pytest.mark.parametrize("top_k", [1, 2, 3, 4, 5, 6, 8])
def test_ties_at_the_kth_token_go_to_low_ids(top_k):
    row = torch.tensor([2.0, 3, 2, 3, 2, -1, 2, 2])
    order = [1, 3, 0, 2, 4, 6, 7, 5]
    for top_k_max in (0, top_k, 8, 100):
        ids = sample(row.expand(4000, -1), top_k=top_k, top_k_max=top_k_max, temperature=5.0)
        assert set(ids.tolist()) == set(order[:top_k])


@pytest.mark.parametrize(("top_p", "size"), [(0.24, 1), (0.26, 2), (0.49, 2), (0.51, 3), (0.76, 4), (1.0, 4)])
def test_top_p_is_the_smallest_set_that_reaches(top_p, size):
    ids = sample(torch.zeros(4).expand(2000, -1), top_p=top_p)
    assert set(ids.tolist()) == set(range(size))


def test_top_p_applies_to_what_top_k_left():
    # Of 10 equal tokens top_k leaves 4; half of their sum is 2 tokens, though 5 of all.
    ids = sample(torch.zeros(10).expand(2000, -1), top_k=4, top_p=0.5, top_k_max=4)
    assert set(ids.tolist()) == {0, 1}


def test_every_row_is_on_its_own():
    """Bit for bit: alone, in a batch, shuffled, and whatever top_k_max is."""
    shuffler = random.Random(0)
    size = 1003  # not a multiple of any vector width
    logits = torch.randn(24, size) * 3
    given = {
        "temperature": [shuffler.choice([0.0, 0.3, 1.0, 2.0]) for _ in range(24)],
        "top_k": [shuffler.choice([1, 3, 20]) for _ in range(24)],
        "top_p": [shuffler.choice([0.1, 0.5, 0.95, 1.0]) for _ in range(24)],
        "counters": list(range(24)),
    }
    whole = sample(logits, **given)
    for top_k_max in (20, 64, 5000):
        assert sample(logits, top_k_max=top_k_max, **given).equal(whole)
    for i in range(24):
        one = {name: [values[i]] for name, values in given.items()}
        assert sample(logits[i : i + 1], top_k_max=20, **one).tolist() == [whole[i]]
    order = list(range(24))
    shuffler.shuffle(order)
    moved = {name: [values[i] for i in order] for name, values in given.items()}
    assert sample(logits[order], **moved).equal(whole[order])


def test_seed_and_counter_both_change_the_draw():
    logits = torch.zeros(1, 1000)
    drawn = {
        int(sample(logits, seed=[seed], counters=[counter]))
        for seed in ((1, 0), (0, 1), (-1, 0), (0, -1))
        for counter in (0, 1, 2)
    }
    assert len(drawn) > 8
    assert sample(logits, seed=[(5, 6)]).equal(sample(logits, seed=[(5, 6)]))


def test_penalize_by_definition():
    shuffler = random.Random(1)
    logits = torch.randn(6, 12).bfloat16()
    logits[0, 3] = -math.inf
    history = torch.tensor([[shuffler.randrange(12) for _ in range(9)] for _ in range(6)], dtype=torch.int32)
    history[2, 5:], history[3] = -1, -1
    num_prompt = torch.tensor([4, 0, 3, 0, 9, 2], dtype=torch.int32)
    repetition, frequency, presence = torch.rand(6) + 0.5, torch.randn(6), torch.randn(6)
    out = sampling.penalize(logits, history, num_prompt, repetition, frequency, presence)
    assert out.dtype == torch.float32
    for i in range(6):
        past = history[i].tolist()
        for token in range(12):
            want = float(logits[i, token])
            if token in past:
                want = want / float(repetition[i]) if want > 0 else want * float(repetition[i])
            count = past[num_prompt[i] :].count(token)
            want -= float(frequency[i]) * count + float(presence[i]) * (count > 0)
            assert float(out[i, token]) == pytest.approx(want, rel=1e-5, abs=1e-5)


def test_apply_mask_reads_bits_from_the_lowest():
    words = torch.tensor([[0b101, 1, 0], [-(2**31), 0, 2]], dtype=torch.int32)
    logits = torch.randn(2, 70, dtype=torch.bfloat16)
    logits[0, 1] = math.nan  # selected away, not added to
    out = sampling.apply_mask(logits, words)
    allowed = [{0, 2, 32}, {31, 65}]
    for i in range(2):
        for token in range(70):
            want = logits[i, token] if token in allowed[i] else torch.tensor(-math.inf)
            assert float(out[i, token]) == float(want)


@pytest.mark.parametrize("k", [0, 1, 4, 9])
def test_logprobs_topk_by_definition(k):
    logits = torch.tensor([[0.5, 2, 2, -1, 2, 0, 7, 7, -3], [0.0] * 9])
    ids = torch.tensor([2, 8], dtype=torch.int32)
    logprob, rank, top, top_ids = sampling.logprobs_topk(logits, ids, k=k)
    assert top.shape == top_ids.shape == (2, k)
    assert rank.tolist() == [3, 1]
    for i, row in enumerate(logits.tolist()):
        norm = math.log(math.fsum(map(math.exp, row)))
        order = sorted(range(9), key=lambda t, row=row: (-row[t], t))[:k]
        assert top_ids[i].tolist() == order
        assert top[i].tolist() == pytest.approx([row[t] - norm for t in order], abs=1e-6)
        assert float(logprob[i]) == pytest.approx(row[ids[i]] - norm, abs=1e-6)


@pytest.mark.parametrize("rows", [1, 4, 10])
def test_logprobs_topk_some_rows_at_a_time(monkeypatch, rows):
    logits, ids = torch.randn(10, 50), torch.arange(10, dtype=torch.int32)
    whole = sampling.logprobs_topk(logits, ids, k=3)
    monkeypatch.setattr(sampling, "LOGIT_BYTES", 4 * 50 * rows)
    for some, all_of_them in zip(sampling.logprobs_topk(logits, ids, k=3), whole, strict=True):
        assert some.equal(all_of_them)


def test_spec_verify_counts_leading_agreement():
    drafts = torch.tensor([[1, 2, 3], [1, 9, 3], [9, 2, 3], [1, -1, -1], [-1, -1, -1]], dtype=torch.int32)
    sampled = torch.tensor([[1, 2, 3, 4]] * 4 + [[-1, -1, -1, -1]], dtype=torch.int32)
    rows = torch.arange(20, dtype=torch.int32).view(5, 4)
    accepted, row = sampling.spec_verify(drafts, sampled, rows)
    assert accepted.tolist() == [3, 1, 0, 1, 0]
    assert row.tolist() == [3, 5, 8, 13, 16]
    assert accepted.dtype == row.dtype == torch.int32
