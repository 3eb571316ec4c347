"""Random paged batches, and attention over them as its definition says: plain loops in float64.

A batch is written through the kernels under test, into a pool whose every other entry is NaN.
"""

import math
import random
from dataclasses import dataclass

import torch

from core.kernels.dtypes import TORCH_DTYPES
from core.kernels.reference import kv


@dataclass
class Batch:
    """T tokens of S sequences. keys and values hold every sequence's [kv_len, Hkv, D] in the model's dtype."""

    q: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    query_lens: list[int]
    planes: tuple[torch.Tensor, ...]
    query_starts: torch.Tensor
    kv_lens: torch.Tensor
    block_table: torch.Tensor
    page: int

    def plan_inputs(self):
        return self.query_starts, self.kv_lens, self.block_table

    @property
    def num_tokens(self) -> int:
        return self.q.shape[0]


def make_batch(
    query_lens,
    kv_lens,
    *,
    heads=(4, 2),
    head_size=8,
    page=4,
    dtype="float32",
    pad_seqs=0,
    pad_tokens=0,
    extra_columns=1,
    seed=0,
    layout=kv.kv_layout,
    write=kv.kv_write,
    forget_before=None,
):
    """A batch with shuffled pages. `forget_before` gives, per sequence, the first position that is written at all."""
    generator = torch.Generator().manual_seed(seed)
    shuffler = random.Random(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(TORCH_DTYPES[dtype])

    num_seqs = len(query_lens) + pad_seqs
    num_pages = [-(-n // page) for n in kv_lens]
    pool_size = sum(num_pages) + 3
    free = list(range(1, pool_size))
    shuffler.shuffle(free)
    width = max([1, *num_pages]) + extra_columns
    table = torch.zeros((num_seqs, width), dtype=torch.int32)
    form = layout(num_kv_heads=heads[1], head_size=head_size, page_tokens=page, dtype=dtype)
    planes = tuple(
        torch.full(shape, float("nan"), dtype=TORCH_DTYPES[plane.dtype])
        for shape, plane in zip(form.shapes(pool_size), form.planes, strict=True)
    )
    keys, values = [], []
    for s, n in enumerate(kv_lens):
        k, v = normal(n, heads[1], head_size), normal(n, heads[1], head_size)
        pages = torch.tensor([free.pop() for _ in range(num_pages[s])], dtype=torch.int32)
        table[s, : len(pages)] = pages
        first = forget_before[s] if forget_before else 0
        positions = torch.arange(first, n)
        slots = pages[positions // page] * page + (positions % page).int()
        planes = write(k[first:], v[first:], planes, slots.int(), page_tokens=page)
        keys.append(k)
        values.append(v)
    starts = torch.tensor([0, *query_lens, *[0] * pad_seqs]).cumsum(0).int()
    lens = torch.tensor([*kv_lens, *[0] * pad_seqs], dtype=torch.int32)
    q = normal(sum(query_lens) + pad_tokens, heads[0], head_size)
    return Batch(q, keys, values, list(query_lens), planes, starts, lens, table, page)


def naive_attention(batch, *, scale, window=None, softcap=None):
    """o and lse by the definition, and spread = sum of p |v|, which error bounds need; float64, padding tokens 0."""
    num_tokens, num_heads, head_size = batch.q.shape
    o = torch.zeros((num_tokens, num_heads, head_size), dtype=torch.float64)
    spread = torch.zeros_like(o)
    lse = torch.full((num_tokens, num_heads), -math.inf, dtype=torch.float64)
    token = 0
    for query_len, keys, values in zip(batch.query_lens, batch.keys, batch.values, strict=True):
        group = num_heads // keys.shape[1]
        for i in range(query_len):
            position = len(keys) - query_len + i
            first = 0 if window is None else max(0, position - window + 1)
            for head in range(num_heads):
                k = keys[first : position + 1, head // group].double()
                v = values[first : position + 1, head // group].double()
                scores = k @ batch.q[token, head].double() * scale
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                lse[token, head] = torch.logsumexp(scores, 0)
                p = torch.exp(scores - lse[token, head])
                o[token, head], spread[token, head] = p @ v, p @ v.abs()
            token += 1
    return o, lse, spread
