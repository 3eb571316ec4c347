"""Attention over the paged pool, in tiles of queries: prefill, decode and verification in one.

How it works. Work must be bounded by shapes, not by lengths. `attn_plan` cuts every sequence's queries into tiles
of c tokens, c from T and S alone; however T tokens fall to S sequences, there are at most
M = min(S, T) + (T - min(S, T)) // c tiles. A tile lies in one sequence, so it reads one row of the block table.
`attn_paged` then walks the tiles, as many at a time as its memory budget allows.

Unread entries of the pool may be NaN, and tables end in null pages: what a token may not see is selected away
in keys, values and scores; 0 * NaN and NaN + -inf are both NaN.

Legend: T tokens, S sequences, B pages in a block table, M tiles, C tokens in a tile, W pages a tile may see,
L = W * page_tokens keys, H query heads, Hkv key and value heads, G = H / Hkv, D head size.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from core.kernels.reference.kv import Planes

BUDGET_BYTES = 16 * 2**20
"""Intermediate tensors of one pass over tiles. Larger is slower on a CPU: they leave the cache."""

MIN_TILE, MAX_TILE = 8, 128


class Plan(NamedTuple):
    """Tiles of queries.

    tile_tokens_MC      token in each cell; 0 in empty cells
    tile_positions_MC   position of that token in its sequence; -1 in empty cells
    tile_pages_MW       pages that the tile may see
    tile_starts_M       position of the first entry of the first of these pages
    token_cells_T       cell of each token, m * C + c; M * C for padding tokens
    """

    tile_tokens_MC: torch.Tensor
    tile_positions_MC: torch.Tensor
    tile_pages_MW: torch.Tensor
    tile_starts_M: torch.Tensor
    token_cells_T: torch.Tensor


def tile_size(num_tokens: int, num_seqs: int) -> int:
    """Tokens in a tile: 1 when every sequence has about one, else a power of two near the mean of T / S."""
    if num_tokens <= num_seqs:
        return 1
    mean = num_tokens // max(num_seqs, 1)
    return min(max(1 << (mean - 1).bit_length(), MIN_TILE), MAX_TILE)


def num_tiles(num_tokens: int, num_seqs: int, tile: int) -> int:
    """The most tiles that `num_tokens` can need, however they fall to sequences.

    n sequences with q tokens each need sum(1 + (q - 1) // tile) <= n + (T - n) // tile.
    """
    filled = min(num_tokens, num_seqs)
    return filled + (num_tokens - filled) // tile


def attn_plan(
    query_starts: torch.Tensor,
    kv_lens: torch.Tensor,
    block_table: torch.Tensor,
    *,
    num_tokens: int,
    page_tokens: int,
    window: int | None = None,
    host: object | None = None,
) -> Plan:
    """Tiles for one step and one KV group; shapes follow from T, S, B, the page and the window.

    query_starts [S + 1] int32 ends in the number of real tokens, as often as there are padded sequences; kv_lens
    [S] int32 counts this step's tokens too, and is 0 for padded sequences; block_table [S, B] int32. `host` is for
    providers that may look at lengths; the reference does not.
    """
    num_seqs, tile = kv_lens.shape[0], tile_size(num_tokens, kv_lens.shape[0])
    device, size = kv_lens.device, num_tiles(num_tokens, num_seqs, tile)
    starts = query_starts[:-1]
    query_lens = query_starts[1:] - starts
    tile_ends = ((query_lens + tile - 1) // tile).cumsum(0)

    # Tile m is part `part` of sequence `seq`. Tiles past the last one have an empty range of tokens.
    tiles = torch.arange(size, device=device)
    seq = torch.searchsorted(tile_ends, tiles, right=True).clamp(max=num_seqs - 1)
    part = tiles - (tile_ends - (query_lens + tile - 1) // tile)[seq]
    offsets = part[:, None] * tile + torch.arange(tile, device=device)
    filled = offsets < query_lens[seq, None]
    positions = (kv_lens - query_lens)[seq, None] + offsets

    tokens = torch.arange(num_tokens, device=device)
    owner = torch.searchsorted(query_starts[1:].long(), tokens, right=True)
    home = owner.clamp(max=num_seqs - 1)
    first_tile = tile_ends[home] - (query_lens[home] + tile - 1) // tile
    cells = first_tile * tile + tokens - starts[home]

    first_page = torch.zeros_like(seq)
    width = block_table.shape[1]
    if window is not None:
        first_page = (positions[:, 0] - window + 1).clamp(min=0) // page_tokens
        width = min(width, (window + tile - 2) // page_tokens + 2)
    columns = (first_page[:, None] + torch.arange(width, device=device)).clamp(max=block_table.shape[1] - 1)
    return Plan(
        torch.where(filled, starts[seq, None] + offsets, 0),
        torch.where(filled, positions, -1),
        block_table[seq[:, None], columns],
        first_page * page_tokens,
        torch.where(owner < num_seqs, cells, size * tile),
    )


def attn_paged(
    q: torch.Tensor,
    planes: Planes,
    plan: Plan,
    *,
    scale: float,
    page_tokens: int,
    window: int | None = None,
    softcap: float | None = None,
    want_lse: bool = False,
    kv_gather: Callable[..., Any],
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """o [T, H, D] in the dtype of q, and with `want_lse` also lse [T, H], the log of the sum of exponentials.

    The token at position p sees the positions <= p of its sequence, and with a window only those > p - window.
    Query heads g * G to (g + 1) * G share key head g. softcap c turns a score s into c * tanh(s / c). Scores,
    probabilities and sums are float32. Padding tokens have o 0 and lse -inf.
    Source: Dao et al. 2022, arXiv:2205.14135 (tiles); Kwon et al. 2023, arXiv:2309.06180 (pages).
    """
    return attend_within(
        BUDGET_BYTES,
        q,
        planes,
        plan,
        scale=scale,
        page_tokens=page_tokens,
        window=window,
        softcap=softcap,
        want_lse=want_lse,
        kv_gather=kv_gather,
    )


def attend_within(
    budget_bytes: int,
    q: torch.Tensor,
    planes: Planes,
    plan: Plan,
    *,
    scale: float,
    page_tokens: int,
    window: int | None = None,
    softcap: float | None = None,
    want_lse: bool = False,
    kv_gather: Callable[..., Any],
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """`attn_paged`, with so many bytes for the intermediate tensors of one pass over tiles."""
    num_heads, head_size = q.shape[1:]
    size, tile = plan.tile_tokens_MC.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    num_keys = plan.tile_pages_MW.shape[1] * page_tokens
    tile_bytes = wide.itemsize * num_heads * (2 * num_keys * head_size + 2 * tile * num_keys)
    step = max(1, budget_bytes // max(tile_bytes, 1))
    # One cell more than there are: padding tokens take it.
    out = q.new_zeros((size * tile + 1, num_heads, head_size))
    lse = torch.full((size * tile + 1, num_heads), float("-inf"), dtype=wide, device=q.device)
    for first in range(0, size, step):
        tokens, positions, pages, starts = (x[first : first + step] for x in plan[:4])
        k, v = (x.flatten(1, 2).to(wide) for x in kv_gather(planes, pages))
        entries = starts[:, None] + torch.arange(num_keys, device=q.device)
        visible = entries[:, None] <= positions[:, :, None]
        if window is not None:
            visible &= entries[:, None] > positions[:, :, None] - window
        cells = slice(first * tile, (first + len(tokens)) * tile)
        o_part, lse_part = _attend(q[tokens].to(wide), k, v, visible, scale, softcap)
        out[cells], lse[cells] = o_part.flatten(0, 1).to(q.dtype), lse_part.flatten(0, 1)
    o = out[plan.token_cells_T]
    return (o, lse[plan.token_cells_T]) if want_lse else o


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor, scale: float, softcap: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Some tiles: q [M, C, H, D]; k, v [M, L, Hkv, D]; visible [M, C, L] bool -> o [M, C, H, D], lse [M, C, H]."""
    num_tiles, tile, num_heads, head_size = q.shape
    num_keys, num_kv_heads = k.shape[1:3]
    per_head = (num_tiles, num_kv_heads, num_heads // num_kv_heads, tile)
    read = visible.any(1)[:, :, None, None]
    k, v = (x.where(read, 0).transpose(1, 2) for x in (k, v))

    grouped = q.view(num_tiles, tile, *per_head[1:3], head_size).permute(0, 2, 3, 1, 4).flatten(2, 3)
    scores = (grouped @ k.transpose(2, 3)).view(*per_head, num_keys) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.where(visible[:, None, None], float("-inf"))
    top = scores.amax(-1, keepdim=True)
    top = top.where(top > float("-inf"), 0)  # an empty cell sees nothing: keep -inf - -inf out
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True)
    o = (weights.flatten(2, 3) @ v).view(*per_head, head_size) / total.where(total > 0, 1)
    lse = (top + torch.log(total)).squeeze(-1)
    return o.permute(0, 3, 1, 2, 4).flatten(2, 3), lse.permute(0, 3, 1, 2).flatten(2, 3)


def attn_merge(
    o1: torch.Tensor, lse1: torch.Tensor, o2: torch.Tensor, lse2: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over two disjoint sets of keys from that over each: o [T, H, D], lse [T, H].

    A side that saw nothing has lse -inf, and its o is not read.
    Source: Milakov and Gimelshein 2018, arXiv:1805.02867.
    """
    lse = torch.logaddexp(lse1, lse2)
    base = lse.where(lse > float("-inf"), 0)
    total = torch.zeros_like(o1, dtype=torch.promote_types(o1.dtype, lse.dtype))
    for o, part in ((o1, lse1), (o2, lse2)):
        weight = torch.exp(part - base)[..., None]
        total += torch.where(weight > 0, o * weight, 0)
    return total.to(o1.dtype), lse
