"""Attention by each variant of the compiled kernels against float64, from a pool whose unread entries are NaN."""

from typing import Any, NamedTuple

import pytest
import torch

from devices.cpu.native import library
from devices.cpu.native.attention import AttentionKernels, kv_gather, kv_layout

VARIANTS = library.variants()
ROUNDOFF = 2.0**-8


class Step(NamedTuple):
    """Sequences of one step: `lens` is queries and keys of each; tensors [T, H, D], [tokens of all, Hkv, D]."""

    lens: list[tuple[int, int]]
    page: int
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    table: torch.Tensor

    @property
    def starts(self) -> list[int]:
        return torch.tensor([0, *(queries for queries, _ in self.lens)]).cumsum(0).tolist()

    def entries(self, seq: int) -> slice:
        first = sum(keys for _, keys in self.lens[:seq])
        return slice(first, first + self.lens[seq][1])


def step(lens: list[tuple[int, int]], heads: int, kv_heads: int, size: int, page: int, padding: int = 0) -> Step:
    """Random tensors; pages of the sequences lie scattered over the pool."""
    draw = torch.Generator().manual_seed(sum(keys for _, keys in lens) + size)
    num_queries, num_keys = (sum(part) for part in zip(*lens, strict=True))
    q = torch.randn(num_queries + padding, heads, size, generator=draw).bfloat16()
    k, v = (torch.randn(num_keys, kv_heads, size, generator=draw).bfloat16() for _ in range(2))
    counts = [-(-keys // page) for _, keys in lens]
    pages = (torch.randperm(sum(counts), generator=draw) + 1).int().split(counts)
    table = torch.nn.utils.rnn.pad_sequence(list(pages), batch_first=True)
    return Step(lens, page, q, k, v, table)


def pool(s: Step, kernels: AttentionKernels) -> tuple[torch.Tensor, ...]:
    layout = kv_layout(num_kv_heads=s.k.shape[1], head_size=s.k.shape[2], page_tokens=s.page, dtype="bfloat16")
    planes = tuple(
        torch.full(shape, float("nan"), dtype=torch.bfloat16) for shape in layout.shapes(int(s.table.max()) + 1)
    )
    for seq, (_, keys) in enumerate(s.lens):
        at = torch.arange(keys)
        slots = (s.table[seq][at // s.page] * s.page + at % s.page).int()
        entries = s.entries(seq)
        planes = kernels.kv_write(s.k[entries], s.v[entries], planes, slots, page_tokens=s.page)
    return planes


def attend(s: Step, variant: str, **fixed: Any) -> tuple[torch.Tensor, torch.Tensor]:
    kernels = AttentionKernels(variant)
    lens = torch.tensor([keys for _, keys in s.lens], dtype=torch.int32)
    starts = torch.tensor(s.starts, dtype=torch.int32)
    plan = kernels.attn_plan(starts, lens, s.table, num_tokens=len(s.q), page_tokens=s.page, window=fixed.get("window"))
    scale = s.q.shape[2] ** -0.5
    o, lse = kernels.attn_paged(s.q, pool(s, kernels), plan, scale=scale, page_tokens=s.page, want_lse=True, **fixed)
    return o, lse


def exact(s: Step, seq: int, window: int | None = None, softcap: float | None = None) -> tuple[torch.Tensor, ...]:
    """o [queries, H, D] of one sequence, how large its terms are, and lse [queries, H]; float64."""
    queries, keys = s.lens[seq]
    q = s.q[s.starts[seq] : s.starts[seq + 1]].double()
    groups = q.shape[1] // s.k.shape[1]
    k, v = (x[s.entries(seq)].double().repeat_interleave(groups, 1) for x in (s.k, s.v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[2] ** -0.5
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    at = torch.arange(keys - queries, keys)[:, None]
    seen = torch.arange(keys) <= at
    if window:
        seen &= torch.arange(keys) > at - window
    scores = scores.masked_fill(~seen, float("-inf"))
    p, lse = torch.softmax(scores, -1), torch.logsumexp(scores, -1)
    return torch.einsum("hqk,khd->qhd", p, v), torch.einsum("hqk,khd->qhd", p, v.abs()), lse.T


STEPS = {
    "decode": step([(1, 1), (1, 15), (1, 16), (1, 64), (1, 65), (1, 300)], 9, 3, 64, 16),
    "prefill": step([(1, 1), (70, 70), (17, 150), (5, 200)], 9, 3, 64, 16, padding=3),
    "pages of 32, heads of 80": step([(1, 90), (33, 100)], 8, 2, 80, 32),
    "heads of 16, one group": step([(1, 40), (9, 9)], 2, 2, 16, 16),
    "heads of 256": step([(1, 70), (3, 130)], 4, 1, 256, 64, padding=1),
}


@pytest.mark.parametrize("fixed", [{}, {"window": 20}, {"window": 1}, {"softcap": 3.0}], ids=str)
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_against_float64(variant: str, name: str, fixed: dict[str, Any]) -> None:
    s = STEPS[name]
    o, lse = attend(s, variant, **fixed)
    for seq in range(len(s.lens)):
        part = slice(s.starts[seq], s.starts[seq + 1])
        want, terms, want_lse = exact(s, seq, **fixed)
        assert ((o[part].double() - want).abs() <= ROUNDOFF * (want.abs() + terms) + 1e-6).all()
        torch.testing.assert_close(lse[part].double(), want_lse, rtol=1e-5, atol=1e-5)
    assert not o[s.starts[-1] :].any()
    assert (lse[s.starts[-1] :] == float("-inf")).all()


@pytest.mark.parametrize("fixed", [{}, {"window": 70}], ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_token_has_the_bits_that_it_has_alone(variant: str, fixed: dict[str, Any]) -> None:
    """However a prompt is cut, whatever is beside it, and on one thread."""
    s = step([(3, 90), (150, 150), (1, 40)], 9, 3, 64, 16)
    together, _ = attend(s, variant, **fixed)
    whole, prompt = s.entries(1), slice(s.starts[1], s.starts[2])
    alone = Step([(150, 150)], 16, s.q[prompt], s.k[whole], s.v[whole], s.table[1:2])
    assert together[prompt].equal(attend(alone, variant, **fixed)[0])
    for first, last in ((0, 1), (1, 8), (8, 77), (77, 150)):
        cut = Step([(last - first, last)], 16, alone.q[first:last], alone.k[:last], alone.v[:last], alone.table)
        assert together[prompt][first:last].equal(attend(cut, variant, **fixed)[0])
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert attend(s, variant, **fixed)[0].equal(together)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("variant", VARIANTS)
def test_nan_reaches_those_that_see_it(variant: str) -> None:
    """Of keys and values of token 41; the pool is NaN wherever nothing was written, too."""
    s = step([(100, 100)], 6, 3, 32, 16)
    clean, _ = attend(s, variant)
    for tensor in (s.k, s.v):
        kept = tensor[41].clone()
        tensor[41] = float("nan")
        o, _ = attend(s, variant)
        assert o[:41].equal(clean[:41])
        assert o[41:].isnan().all()
        windowed, _ = attend(s, variant, window=7)
        assert windowed[41:48].isnan().all()
        assert not windowed[:41].isnan().any()
        assert not windowed[48:].isnan().any()
        tensor[41] = kept


@pytest.mark.parametrize("variant", VARIANTS)
def test_very_unlike_scores(variant: str) -> None:
    """One key outweighs all others by far, at either end; then all weigh the same."""
    s = step([(1, 200)], 4, 2, 64, 16)
    s.q[:] = 8
    for best in (0, 199):
        s.k[:] = -8
        s.k[best] = 8
        o, lse = attend(s, variant)
        assert o.view(2, 2, 64).equal(s.v[best][:, None].expand(2, 2, 64))
        assert (lse == 512).all()
    s.k[:], s.v[:] = 8, 3
    assert (attend(s, variant)[0] == 3).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_pool_gives_back_what_was_written(variant: str) -> None:
    s = step([(1, 37), (1, 64)], 6, 3, 48, 32)
    planes = pool(s, AttentionKernels(variant))
    k, v = kv_gather(planes, s.table)
    for seq, (_, keys) in enumerate(s.lens):
        for got, given in ((k, s.k), (v, s.v)):
            assert got[seq].flatten(0, 1)[:keys].equal(given[s.entries(seq)])
            assert got[seq].flatten(0, 1)[keys : -(-keys // 32) * 32].isnan().all()


@pytest.mark.parametrize("tokens", [5, 90])
@pytest.mark.parametrize("variant", VARIANTS)
def test_slots_of_minus_one_are_skipped_and_views_are_read(variant: str, tokens: int) -> None:
    draw = torch.Generator().manual_seed(1)
    qkv = torch.randn(tokens, 5, 16, generator=draw).bfloat16()
    k, v = qkv[:, 1:3], qkv[:, 3:]
    layout = kv_layout(num_kv_heads=2, head_size=16, page_tokens=16, dtype="bfloat16")
    planes = tuple(torch.zeros(shape, dtype=torch.bfloat16) for shape in layout.shapes(8))
    slots = torch.randperm(112, generator=draw)[:tokens].int() + 16
    slots[::3] = -1
    kernels = AttentionKernels(variant)
    written = kernels.kv_write(k, v, planes, slots, page_tokens=16)
    all_k, all_v = (x.flatten(0, 1) for x in kv_gather(written, torch.arange(8).int()))
    kept = slots >= 0
    for got, given in ((all_k, k), (all_v, v)):
        assert got[slots[kept].long()].equal(given[kept])
        assert got.any(-1).any(-1).sum() == kept.sum()
