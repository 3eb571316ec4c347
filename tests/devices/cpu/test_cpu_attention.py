"""Native attention and pool of the CPU against the float64 definition, with NaN in every entry nobody may read."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.kernels.reference import copy
from core.kernels.reference import kv as reference_kv
from devices.cpu import attention, invariant, kv, plan
from tests.core.kernels.reference.paged import make_batch, naive_attention

# Unit roundoffs of what is stored.
ROUNDOFF = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}


def native_batch(query_lens, kv_lens, **options):
    return make_batch(query_lens, kv_lens, layout=kv.kv_layout, write=kv.kv_write, **options)


def host_of(batch, exact=True):
    """Lengths as the runner hands them over; when not exact, bounds that would be wrong to use."""
    lens, query_lens = batch.kv_lens.numpy(), batch.query_starts.diff().numpy()
    return SimpleNamespace(exact=exact, kv_lens=lens + (not exact), query_lens=query_lens + (not exact))


PROVIDERS = [(plan.attn_plan, attention.attn_paged), (invariant.attn_plan, invariant.attn_paged)]


def plan_of(batch, window):
    return plan.attn_plan(*batch.plan_inputs(), num_tokens=batch.num_tokens, page_tokens=batch.page, window=window)


def run(batch, *, window=None, host=None, provider=PROVIDERS[0], **options):
    make_plan, attend = provider
    made = make_plan(
        *batch.plan_inputs(), num_tokens=batch.num_tokens, page_tokens=batch.page, window=window, host=host
    )
    return attend(batch.q, batch.planes, made, scale=0.3, page_tokens=batch.page, window=window, **options)


def check(batch, dtype="float32", *, window=None, softcap=None, host=None):
    """Bound: storing o, and rounding probabilities to the dtype, weigh |o| and sum(p |v|) with one roundoff each.

    Float32 sums of up to a few hundred terms of size 1 add 2e-5 at most.
    """
    want, want_lse, spread = naive_attention(batch, scale=0.3, window=window, softcap=softcap)
    bound = ROUNDOFF[dtype] * (want.abs() + spread) + 2e-5
    for provider in PROVIDERS:
        options = {"window": window, "softcap": softcap, "host": host, "provider": provider}
        plain = run(batch, **options)
        assert plain.dtype == batch.q.dtype
        assert ((plain.double() - want).abs() <= bound).all()
        o, lse = run(batch, **options, want_lse=True)
        assert ((o.double() - want).abs() <= bound).all()
        torch.testing.assert_close(lse.double(), want_lse, rtol=0, atol=2e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("heads", [(2, 2), (9, 3), (4, 1)])
def test_decode_prefill_chunk_and_verify_in_one_batch(dtype, heads):
    batch = native_batch(
        [1, 30, 1, 17, 4, 1], [40, 30, 16, 50, 21, 33], heads=heads, head_size=16, page=16, dtype=dtype
    )
    check(batch, dtype)
    check(batch, dtype, softcap=2.0)
    check(batch, dtype, window=17)


@pytest.mark.parametrize("kv_len", [1, 15, 16, 17, 31, 32, 33])
def test_page_edges_in_groups_and_alone(kv_len):
    check(native_batch([1], [kv_len], page=16))
    check(native_batch([1, 1, 1], [kv_len, 16, 40], page=16))
    check(native_batch([1, kv_len], [kv_len, kv_len], page=16))


@pytest.mark.parametrize("kv_len", [15, 16, 17, 40])
@pytest.mark.parametrize("query_len", [1, 9])
def test_window_edges_and_forgotten_tokens(kv_len, query_len):
    window, lens = 16, [kv_len, 20, 3]
    query_lens = [query_len, 1, 1]
    firsts = [max(0, n - q - window + 1) for n, q in zip(lens, query_lens, strict=True)]
    batch = native_batch(query_lens, lens, forget_before=firsts)
    for s, first in enumerate(firsts):
        batch.block_table[s, : first // batch.page] = 0
    check(batch, window=window)


def test_padding_and_empty_sequences():
    batch = native_batch([0, 5, 0, 1, 1, 0], [0, 5, 7, 9, 2, 0], pad_seqs=3, pad_tokens=6)
    check(batch)
    assert run(batch)[7:].eq(0).all()
    nothing = native_batch([], [], pad_seqs=2, pad_tokens=3)
    assert run(nothing).eq(0).all()


def test_exact_host_lengths_are_used_and_bounds_are_not():
    batch = native_batch([1, 6, 1], [9, 6, 2], pad_seqs=1, pad_tokens=2)
    check(batch, host=host_of(batch))
    check(batch, host=host_of(batch, exact=False))


def test_blocks_of_queries_change_nothing(monkeypatch):
    batch = native_batch([50, 33], [50, 70])
    whole = run(batch)
    monkeypatch.setattr(plan, "QUERY_BLOCK", 8)
    monkeypatch.setattr(attention, "SCORE_BYTES", 1)
    torch.testing.assert_close(run(batch), whole, rtol=0, atol=1e-5)
    check(batch)
    check(batch, window=11)


@pytest.mark.parametrize(("window", "widest"), [(None, 56), (11, 18)])
def test_blocks_of_a_sequence_share_one_mask(monkeypatch, window, widest):
    """Memory for masks grows with the keys of a block, not with those of all blocks."""
    monkeypatch.setattr(plan, "QUERY_BLOCK", 8)
    batch = native_batch([40], [56])
    masks = [block.mask_QL for block in plan_of(batch, window).blocks]
    assert len(masks) == 5
    assert len({mask.untyped_storage().data_ptr() for mask in masks}) == 1
    assert masks[0].untyped_storage().nbytes() == 8 * widest
    check(batch, window=window)


def test_groups_hold_sequences_of_similar_length():
    lens = [16, 1000, 30, 990, 17]
    batch = native_batch([1] * 5, lens, page=16)
    made = plan.attn_plan(*batch.plan_inputs(), num_tokens=5, page_tokens=16)
    assert sorted(g.mask_N11L.shape[0] for g in made.groups) == [2, 3]
    assert all(g.mask_N11L.shape[-1] - g.mask_N11L.sum(-1).min() <= plan.WASTED_KEYS for g in made.groups)
    check(batch)


def test_groups_do_not_grow_without_bound(monkeypatch):
    monkeypatch.setattr(plan, "GROUP_KEYS", 64)
    batch = native_batch([1] * 7, [16] * 7, page=16)
    made = plan.attn_plan(*batch.plan_inputs(), num_tokens=7, page_tokens=16)
    assert [len(g.pages_NW) for g in made.groups] == [4, 3]
    check(batch)


def test_strided_queries_give_the_same():
    batch = native_batch([1, 6, 1], [9, 6, 2])
    whole = run(batch)
    batch.q = torch.cat([batch.q, batch.q], 1)[:, :4]
    assert run(batch).equal(whole)


lengths = st.lists(st.tuples(st.sampled_from([0, 1, 1, 2, 20]), st.integers(0, 30)), min_size=1, max_size=8)


@settings(max_examples=40, deadline=None)
@given(
    lengths=lengths,
    pad_tokens=st.integers(0, 3),
    window=st.sampled_from([None, 1, 4, 7]),
    page=st.sampled_from([1, 4, 16]),
    seed=st.integers(0, 99),
)
def test_random_batches(lengths, pad_tokens, window, page, seed):
    query_lens, kv_lens = [q for q, _ in lengths], [q + past for q, past in lengths]
    check(native_batch(query_lens, kv_lens, pad_seqs=1, pad_tokens=pad_tokens, page=page, seed=seed), window=window)


def test_pool_holds_what_the_reference_pool_holds():
    options = {"num_kv_heads": 2, "head_size": 8, "page_tokens": 4, "dtype": "bfloat16"}
    layouts = kv.kv_layout(**options), reference_kv.kv_layout(**options)
    assert layouts[0].bytes_per_page == layouts[1].bytes_per_page
    assert layouts[0].format_id != layouts[1].format_id
    native, reference = (
        tuple(torch.full(s, float("nan"), dtype=torch.bfloat16) for s in layout.shapes(7)) for layout in layouts
    )
    k, v = torch.randn(2, 9, 2, 8).bfloat16()
    slots = torch.tensor([9, 27, 4, -1, 5, 6, -1, 20, 12], dtype=torch.int32)
    assert kv.kv_write(k, v, native, slots, page_tokens=4) is native
    reference_kv.kv_write(k, v, reference, slots, page_tokens=4)
    pages = torch.tensor([[6, 1], [2, 5], [3, 4]], dtype=torch.int32)
    for ours, theirs in zip(kv.kv_gather(native, pages), reference_kv.kv_gather(reference, pages), strict=True):
        assert ours.shape == (3, 2, 4, 2, 8)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def test_generic_copies_work_on_this_layout():
    layout = kv.kv_layout(num_kv_heads=2, head_size=8, page_tokens=4, dtype="float32")
    planes = tuple(torch.randn(s) for s in layout.shapes(5))
    exported = reference_kv.kv_export([planes], torch.tensor([3, 1]).int(), kv_gather=kv.kv_gather)
    copy.kv_copy(planes, torch.tensor([3]).int(), torch.tensor([2]).int(), layout=layout)
    assert all(p[:, 2].equal(p[:, 3]) for p in planes)
    empty = tuple(torch.zeros(s) for s in layout.shapes(5))
    reference_kv.kv_import([empty], torch.tensor([1, 4]).int(), exported, kv_write=kv.kv_write)
    for source, target in zip(planes, empty, strict=True):
        assert target[:, 1].equal(source[:, 3])
        assert target[:, 4].equal(source[:, 1])
        assert target[:, [0, 2, 3]].eq(0).all()


def test_a_prompt_in_one_block(monkeypatch):
    """What long prompts take, on short ones: beside a chunk that cannot, and with a window that must not."""
    monkeypatch.setattr(plan, "CAUSAL_WHOLE", 20)
    batch = native_batch([40, 30, 1, 20], [40, 50, 9, 20], page=16)
    made = plan.attn_plan(*batch.plan_inputs(), num_tokens=batch.num_tokens, page_tokens=16)
    assert [block.causal for block in made.blocks if block.tokens.stop - block.tokens.start > 1] == [True, False, True]
    check(batch)
    check(batch, window=7)
