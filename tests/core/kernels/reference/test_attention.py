"""Reference attention against plain float64 loops, with NaN in every entry that nobody may read."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.kernels.reference import attention, kv
from tests.core.kernels.reference.paged import make_batch, naive_attention


def run(batch, *, window=None, softcap=None, want_lse=False, scale=0.3):
    plan = attention.attn_plan(*batch.plan_inputs(), num_tokens=batch.num_tokens, page_tokens=batch.page, window=window)
    return attention.attn_paged(
        batch.q,
        batch.planes,
        plan,
        scale=scale,
        page_tokens=batch.page,
        window=window,
        softcap=softcap,
        want_lse=want_lse,
        kv_gather=kv.kv_gather,
    )


def check(batch, *, window=None, softcap=None):
    o, lse = run(batch, window=window, softcap=softcap, want_lse=True)
    want_o, want_lse, _ = naive_attention(batch, scale=0.3, window=window, softcap=softcap)
    assert o.dtype == batch.q.dtype
    # float32 arithmetic over a few hundred terms of size 1, then one rounding to the dtype of q.
    rounding = 0.0 if o.dtype == torch.float32 else 2.0**-8
    torch.testing.assert_close(o.double(), want_o, rtol=rounding, atol=1e-5)
    torch.testing.assert_close(lse.double(), want_lse, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kv_len", [1, 3, 4, 5, 7, 8, 9])
def test_page_edges(kv_len):
    check(make_batch([1, kv_len, 2], [kv_len, kv_len, kv_len + 2]))


@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (2, 1), (9, 3), (8, 1), (14, 2)])
def test_head_groups(heads):
    check(make_batch([3, 1], [10, 6], heads=heads))


def test_decode_prefill_chunk_and_verify_in_one_batch():
    check(make_batch([1, 30, 17, 4, 1], [40, 30, 50, 21, 1], heads=(6, 2), head_size=16, page=16))


def test_empty_sequences_padding_sequences_and_padding_tokens():
    batch = make_batch([0, 5, 0, 1, 0], [0, 5, 7, 9, 0], pad_seqs=3, pad_tokens=6)
    check(batch)
    assert run(batch)[6:].eq(0).all()


def test_nothing_but_padding():
    batch = make_batch([], [], pad_seqs=2, pad_tokens=3)
    o, lse = run(batch, want_lse=True)
    assert o.eq(0).all()
    assert lse.eq(float("-inf")).all()


@pytest.mark.parametrize("kv_len", [15, 16, 17, 40])
@pytest.mark.parametrize("query_len", [1, 9])
def test_window_edges_and_forgotten_tokens(kv_len, query_len):
    window = 16
    # Tokens that no query of this step sees are not even written: their pages may have been given away.
    first = max(0, kv_len - query_len - window + 1)
    batch = make_batch([query_len, 1], [kv_len, 3], forget_before=[first, 0])
    batch.block_table[0, : first // batch.page] = 0
    check(batch, window=window)


def test_softcap_comes_before_the_mask():
    check(make_batch([6, 1], [9, 4]), softcap=0.7)
    check(make_batch([6, 1], [9, 4]), softcap=0.7, window=3)


def test_bfloat16_and_float16():
    check(make_batch([20, 1, 1], [33, 8, 70], dtype="bfloat16", page=16))
    check(make_batch([20, 1, 1], [33, 8, 70], dtype="float16", page=16))


def test_float64_is_its_own_oracle():
    batch = make_batch([5, 1], [9, 4])
    batch.q, batch.planes = batch.q.double(), tuple(x.double() for x in batch.planes)
    torch.testing.assert_close(run(batch), naive_attention(batch, scale=0.3)[0], rtol=0, atol=1e-14)


def test_passes_under_a_small_budget_change_nothing(monkeypatch):
    batch = make_batch([33, 1, 5], [50, 9, 5], pad_tokens=2)
    whole = run(batch)
    monkeypatch.setattr(attention, "BUDGET_BYTES", 1)
    torch.testing.assert_close(run(batch), whole, rtol=0, atol=1e-6)


lengths = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30)), min_size=1, max_size=6)


@settings(max_examples=40, deadline=None)
@given(
    lengths=lengths,
    pad_seqs=st.integers(0, 2),
    pad_tokens=st.integers(0, 5),
    window=st.sampled_from([None, 1, 4, 7]),
    page=st.sampled_from([1, 4, 16]),
    seed=st.integers(0, 99),
)
def test_random_batches(lengths, pad_seqs, pad_tokens, window, page, seed):
    query_lens = [q for q, _ in lengths]
    kv_lens = [q + past for q, past in lengths]
    check(
        make_batch(query_lens, kv_lens, pad_seqs=pad_seqs, pad_tokens=pad_tokens, page=page, seed=seed),
        window=window,
    )


@settings(max_examples=60, deadline=None)
@given(cuts=st.lists(st.integers(0, 200), min_size=3, max_size=3), window=st.sampled_from([None, 20]))
def test_shapes_and_work_do_not_depend_on_lengths(cuts, window):
    """However 200 tokens fall to 4 sequences, the plan has the same shapes and every token has its own cell."""
    num_tokens, ends = 200, sorted(cuts)
    starts = torch.tensor([0, *ends, num_tokens], dtype=torch.int32)
    kv_lens = starts.diff() + 5
    plan = attention.attn_plan(
        starts, kv_lens.int(), torch.zeros((4, 14), dtype=torch.int32), num_tokens=200, page_tokens=16, window=window
    )
    # Tiles of 64: at most 4 + (200 - 4) // 64. A window of 20 and a tile of 64 reach over at most 7 pages.
    assert [tuple(x.shape) for x in plan] == [(7, 64), (7, 64), (7, 14 if window is None else 7), (7,), (200,)]
    assert plan.tile_tokens_MC.flatten()[plan.token_cells_T].tolist() == list(range(200))
    assert (plan.tile_positions_MC >= 0).sum() == 200


@pytest.mark.parametrize(
    ("num_tokens", "num_seqs", "tile"),
    [(4, 4, 1), (3, 8, 1), (9, 8, 8), (64, 4, 16), (65, 4, 16), (68, 4, 32), (2048, 1, 128), (0, 0, 1)],
)
def test_tile_size(num_tokens, num_seqs, tile):
    assert attention.tile_size(num_tokens, num_seqs) == tile


def test_merging_two_halves_of_the_keys_equals_the_whole():
    batch = make_batch([1, 1, 1], [16, 12, 5])
    o, lse = run(batch, want_lse=True)
    # The first 8 positions alone, then the rest alone; the last sequence has nothing in the second half.
    attend = partial(attention._attend, batch.q[:, None].float())
    halves = []
    for first, last in ((0, 8), (8, 16)):
        k, v = (x.flatten(1, 2) for x in kv.kv_gather(batch.planes, batch.block_table[:, first // 4 : last // 4]))
        visible = (torch.arange(first, last) < batch.kv_lens[:, None])[:, None]
        o_half, lse_half = attend(k, v, visible, 0.3, None)
        halves += [o_half[:, 0], lse_half[:, 0]]
    halves[2][2] = float("nan")  # what a side that saw nothing holds is not read
    merged_o, merged_lse = attention.attn_merge(*halves)
    torch.testing.assert_close(merged_o, o, rtol=0, atol=1e-6)
    torch.testing.assert_close(merged_lse, lse, rtol=0, atol=1e-6)


def test_merging_nothing_with_nothing():
    o, lse = torch.full((1, 2, 4), float("nan")), torch.full((1, 2), float("-inf"))
    merged_o, merged_lse = attention.attn_merge(o, lse, o, lse)
    assert merged_o.eq(0).all()
    assert merged_lse.eq(float("-inf")).all()
