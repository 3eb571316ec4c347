"""Who reads what in a step: the plan of attention on the CPU.

How it works. Lengths are on the host, so the plan says exactly what to read. Sequences with one query (decode) go in
groups of similar length: one gather of pages, one call of torch. Longer ones go by blocks of queries, each over just
the keys that it may see. What depends on lengths alone, masks too, is made here, once per step and not per layer.

Legend: S sequences, N sequences in a group, W pages read, L = W * page_tokens keys, Q queries in a block.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

QUERY_BLOCK = 256
"""Queries in a block: half of the work of a causal mask over 2048 keys is saved, and calls are still few."""

CAUSAL_WHOLE = 1024
"""A prompt of so many tokens, all in one step, is one block: torch's own causal kernel then beats blocks with masks."""

WASTED_KEYS = 256
"""Keys read in vain by a group: about what another call costs."""

GROUP_KEYS = 16384
"""Keys read at a time by a group: bounds the memory for what is gathered."""


@dataclass(frozen=True)
class Block:
    """Queries of one sequence.

    tokens    [first, last) in the step
    pages_W   int32
    keys      [first, last) of the gathered entries that any of the queries sees
    mask_QL   bool, of these keys; None when every query sees all of them
    causal    instead of a mask: query i sees keys 0 to i
    """

    tokens: slice
    pages_W: torch.Tensor
    keys: slice
    mask_QL: torch.Tensor | None
    causal: bool


@dataclass(frozen=True)
class Group:
    """Sequences with one query each.

    tokens_N      of the step: a slice where they follow each other
    pages_NW      int32, flat: sequence by sequence
    hidden        int64, entries of the N * L gathered ones that nobody may read
    mask_N11L     bool
    """

    tokens: slice | torch.Tensor
    pages_NW: torch.Tensor
    hidden: torch.Tensor
    mask_N11L: torch.Tensor


@dataclass(frozen=True)
class Plan:
    """num_real: tokens that belong to a sequence."""

    num_real: int
    groups: list[Group]
    blocks: list[Block]


def attn_plan(
    query_starts: torch.Tensor,
    kv_lens: torch.Tensor,
    block_table: torch.Tensor,
    *,
    num_tokens: int,
    page_tokens: int,
    window: int | None = None,
    host: Any = None,
) -> Plan:
    """What to read for whom, for one step and one KV group. Arguments as in core.kernels.reference.attention."""
    if host is not None and host.exact:
        query_lens, lens = host.query_lens.tolist(), host.kv_lens.tolist()
    else:
        query_lens, lens = query_starts.diff().tolist(), kv_lens.tolist()
    ranges: dict[int, tuple[int, int, int]] = {}
    blocks: list[Block] = []
    token = 0
    for s, (query_len, kv_len) in enumerate(zip(query_lens, lens, strict=True)):
        if query_len == 1:
            ranges[s] = (token, 0 if window is None else max(0, kv_len - window), kv_len)
        elif query_len > 1:
            blocks += _cut(block_table[s], token, query_len, kv_len, page_tokens, window)
        token += query_len
    groups = []
    for members in _similar(ranges, page_tokens):
        if len(members) == 1:
            at, _, kv_len = ranges[members[0]]
            blocks += _cut(block_table[members[0]], at, 1, kv_len, page_tokens, window)
        else:
            groups.append(_group([ranges[s] for s in members], block_table[members], page_tokens))
    return Plan(token, groups, blocks)


def _cut(
    table: torch.Tensor, token: int, query_len: int, kv_len: int, page_tokens: int, window: int | None
) -> Iterator[Block]:
    """Blocks of one sequence's queries, the first of which is `token`."""
    whole = window is None and query_len == kv_len >= CAUSAL_WHOLE
    step = query_len if whole else QUERY_BLOCK
    start = kv_len - query_len
    reach = start + (query_len - 1) // step * step  # keys before the first query of a block, at most
    reach = reach if window is None else min(reach, window - 1)
    visible = None
    for begin in range(0, query_len, step):
        size = min(step, query_len - begin)
        position = start + begin
        last = position + size
        first = 0 if window is None else max(0, position - window + 1)
        first_page = first // page_tokens
        base = first_page * page_tokens
        causal, mask = first == position and size > 1 and window is None, None
        if size > 1 and not causal:
            if visible is None:
                visible = _visible(min(step, query_len), reach, window)
            mask = visible[:size, reach - (position - first) : reach + size]
        yield Block(
            slice(token + begin, token + begin + size),
            table[first_page : -(-last // page_tokens)],
            slice(first - base, last - base),
            mask,
            causal,
        )


def _visible(num_queries: int, reach: int, window: int | None) -> torch.Tensor:
    """Which keys each of some queries sees: bool [Q, reach + Q], from `reach` keys before the first query on.

    Blocks of a sequence cut their masks from one: a mask depends on where keys lie beside queries, not on positions.
    """
    keys, at = torch.arange(-reach, num_queries), torch.arange(num_queries)[:, None]
    visible = keys <= at
    return visible if window is None else visible & (keys > at - window)


def _similar(ranges: dict[int, tuple[int, int, int]], page_tokens: int) -> Iterator[list[int]]:
    """Split sequences, with (token, first key, last key) each, into groups of similar numbers of pages."""
    pages = [(-(-last // page_tokens) - first // page_tokens, s) for s, (_, first, last) in ranges.items()]
    members: list[int] = []
    width = wasted = 0
    for num_pages, s in sorted(pages, reverse=True):
        padding = (width - num_pages) * page_tokens
        full = (len(members) + 1) * width * page_tokens > GROUP_KEYS
        if not members or full or wasted + padding > WASTED_KEYS:
            if members:
                yield sorted(members)
            members, width, wasted, padding = [], num_pages, 0, 0
        members.append(s)
        wasted += padding
    if members:
        yield sorted(members)


def _group(ranges: list[tuple[int, int, int]], table: torch.Tensor, page_tokens: int) -> Group:
    """A group of sequences with (token, first key, last key) each, and their rows of the block table."""
    tokens, firsts, lasts = torch.tensor(ranges).T
    first_pages = firsts // page_tokens
    width = int(((lasts + page_tokens - 1) // page_tokens - first_pages).max())
    columns = first_pages[:, None] + torch.arange(width)
    # Past a sequence's end the null page is read, and hidden.
    pages = table.gather(1, columns.clamp(max=table.shape[1] - 1))
    entries = first_pages[:, None] * page_tokens + torch.arange(width * page_tokens)
    mask = (entries >= firsts[:, None]) & (entries < lasts[:, None])
    begin, end = ranges[0][0], ranges[-1][0] + 1
    return Group(
        slice(begin, end) if end - begin == len(ranges) else tokens,
        pages.flatten(),
        (~mask).flatten().nonzero()[:, 0],
        mask[:, None, None],
    )
