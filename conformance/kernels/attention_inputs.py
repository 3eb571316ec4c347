"""What queries, keys and values hold, and how long sequences are: from a case and a draw to a scene.

Each family of cases shows something that others hide: see FILLS, and the two exact ones below.

Legend as in `conformance.kernels.attention_scene`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from conformance.case import Case
from conformance.draw import Draw, Floats, stored
from conformance.kernels.attention_scene import Pages, Scene, lay_pages

MAX_RANDOM_SEQS, MAX_RANDOM_TOKENS = 16, 400
"""Bounds of what the family "random" draws, padding included."""

PADDING = 1e4
"""What queries of padding tokens hold: nobody may read them, and nothing says that they are small."""

EXACT = ("selector", "cancellation")
"""Families whose results are known to the bit."""

EXACT_SCALE = 2.0**-3
HIDDEN = -4096.0
"""Score of the keys that a selector does not choose: exp of it is 0 in every format."""

_SELECTING_QUERY = 256.0


@dataclass(frozen=True)
class Sizes:
    """All of a scene that is not a tensor. Sequences and tokens without padding."""

    query_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    heads: tuple[int, int]
    head_size: int
    page: int
    scale: float
    window: int | None
    softcap: float | None
    lse: bool
    pads: tuple[int, int]  # tokens, sequences

    @property
    def num_tokens(self) -> int:
        return sum(self.query_lens)


def sizes_of(case: Case, draw: Draw) -> Sizes:
    """As the case says; random ones, and lengths of many sequences, are drawn."""
    if case.family == "random":
        return _random_sizes(case, draw)
    queries, lens, size = case.get("queries"), case.get("lens"), case["d"]
    if "seqs" in case.params:
        queries = (1,) * case["seqs"]
        lens = tuple((draw.integers(1, case["longest"] + 1, case["seqs"])).tolist())
    return Sizes(
        queries,
        lens,
        case["heads"],
        size,
        case["page"],
        EXACT_SCALE if case.family in EXACT else case.get("scale") or size**-0.5,
        case.get("window"),
        case.get("softcap"),
        case.get("lse", False),
        case.get("pads", (0, 0)),
    )


def _random_sizes(case: Case, draw: Draw) -> Sizes:
    """Sizes that nobody could have prepared for."""
    num_seqs = draw.integer(1, MAX_RANDOM_SEQS - 3)
    queries = [1 if draw.integer(0, 2) else draw.integer(1, 30) for _ in range(num_seqs)]
    past = [draw.integer(0, 150) if draw.integer(0, 4) else 0 for _ in range(num_seqs)]
    kv_heads = draw.integer(1, 4)
    return Sizes(
        tuple(queries),
        tuple(q + p for q, p in zip(queries, past, strict=True)),
        (kv_heads * draw.integer(1, 9), kv_heads),
        case["d"],
        case["page"],
        0.05 + draw.integer(1, 100) / 400,
        draw.integer(1, 80) if draw.integer(0, 2) else None,
        float(draw.integer(2, 40)) if draw.integer(0, 3) == 0 else None,
        bool(draw.integer(0, 2)),
        (draw.integer(0, 8), draw.integer(0, 4)),
    )


@dataclass(frozen=True)
class Fill:
    """Normal numbers times a factor, plus a mean."""

    q: float = 1.0
    k: float = 1.0
    v: float = 1.0
    q_mean: float = 0.0
    k_mean: float = 0.0
    v_mean: float = 0.0


FILLS = {
    "peaky": Fill(q=8),  # one key weighs most: scores rounded too early show
    "huge": Fill(q=64, k=8),  # exp overflows, unless the largest score is taken away first
    "equal": Fill(q=0),  # every key weighs the same
    "negative": Fill(q=0, q_mean=64, k=1, k_mean=-64),  # all scores are far below any constant that stands for a mask
    "ones": Fill(v=0, v_mean=1),  # weights must sum to one
    "positive": Fill(v=0.25, v_mean=1),  # nothing cancels: a lost key, or a sum off by a little, shows
    "doubled": Fill(v=0.25, v_mean=1),  # nothing near 0, where half a result has fewer bits
}
_LARGE = {"float32": 2.0**100, "bfloat16": 2.0**100, "float16": 2.0**12}
_SMALL = {"float32": 2.0**-80, "bfloat16": 2.0**-80, "float16": 2.0**-12}


def _fill(case: Case, draw: Draw) -> Fill:
    if case.family in ("large", "small"):
        return Fill(v=(_LARGE if case.family == "large" else _SMALL)[case["dtype"]])
    if case.family == "random":
        return (Fill(), FILLS["peaky"], FILLS["positive"], FILLS["negative"])[draw.integer(0, 4)]
    return FILLS.get(case.family, Fill())


def make_scene(case: Case, draw: Draw) -> Scene:
    sizes = sizes_of(case, draw)
    pages = lay_pages(
        draw,
        sizes.query_lens,
        sizes.kv_lens,
        sizes.page,
        window=sizes.window,
        shared=case.get("shared", 0),
        aliased=case.family == "aliased",
    )
    if case.family == "selector":
        q, k, v = _selector(draw, sizes, pages)
    elif case.family == "cancellation":
        q, k, v = _cancellation(draw, sizes, pages)
    else:
        q, k, v = _normal(draw, sizes, pages, _fill(case, draw))
    dtype, (pad_tokens, pad_seqs) = case["dtype"], sizes.pads
    q = np.concatenate((q, np.full((pad_tokens, *q.shape[1:]), PADDING)))
    table = np.concatenate((pages.table, np.zeros((pad_seqs, pages.table.shape[1]), np.int64)))
    return Scene(
        stored(q, dtype),
        stored(k, dtype),
        stored(v, dtype),
        torch.from_numpy(pages.slots.astype(np.int32)),
        torch.from_numpy(table.astype(np.int32)),
        sizes.query_lens + (0,) * pad_seqs,
        sizes.kv_lens + (0,) * pad_seqs,
        sizes.page,
        pages.num_pages,
        sizes.scale,
        sizes.window,
        sizes.softcap,
        sizes.lse,
    )


def _normal(draw: Draw, sizes: Sizes, pages: Pages, fill: Fill) -> tuple[Floats, Floats, Floats]:
    (num_heads, num_kv_heads), size = sizes.heads, sizes.head_size
    q = draw.normal(sizes.num_tokens, num_heads, size) * fill.q + fill.q_mean
    k, v = draw.normal(2, len(pages.slots), num_kv_heads, size)
    return q, k * fill.k + fill.k_mean, v * fill.v + fill.v_mean


def _selector(draw: Draw, sizes: Sizes, pages: Pages) -> tuple[Floats, Floats, Floats]:
    """Two keys of each query score 0: the last that it sees, and the first of its window, or any where there is none.

    So do the keys next to them that it must not see; all others score HIDDEN. Query i reads dimension i of a key. The
    sum of two values is one of small positive integers: half of it is exact, and no error makes it another number.
    """
    (num_heads, num_kv_heads), size = sizes.heads, sizes.head_size
    q = np.zeros((sizes.num_tokens, num_heads, size))
    k = np.full((len(pages.slots), num_kv_heads, size), HIDDEN / EXACT_SCALE / _SELECTING_QUERY)
    token = 0
    for s, (queries, n) in enumerate(zip(sizes.query_lens, sizes.kv_lens, strict=True)):
        assert queries <= size, "a query needs a dimension of its own"
        entries = np.flatnonzero(pages.owner == s)
        first_written = int(pages.position[entries[0]]) if len(entries) else 0
        for i in range(queries):
            at = n - queries + i
            chosen = [at, at + 1]
            if sizes.window is None:
                chosen.append(draw.integer(0, at + 1))
            else:
                chosen += [max(0, at - sizes.window + 1), at - sizes.window]
            written = [position for position in chosen if first_written <= position < n]
            q[token, :, i] = _SELECTING_QUERY
            k[entries[np.array(written) - first_written], :, i] = 0
            token += 1
    v = draw.integers(16, 32, len(pages.slots), num_kv_heads, size).astype(np.float64)
    return q, k, v


def _cancellation(draw: Draw, sizes: Sizes, pages: Pages) -> tuple[Floats, Floats, Floats]:
    """All keys score 0, and are as many as a power of two; values are large opposite integers with a small mean.

    The mean is 4 to 11, so that halves of the keys, averaged apart and joined, round to the same.
    """
    (num_heads, num_kv_heads), size = sizes.heads, sizes.head_size
    k = draw.normal(len(pages.slots), num_kv_heads, size)
    v = np.zeros_like(k)
    for s, n in enumerate(sizes.kv_lens):
        entries = np.flatnonzero(pages.owner == s)
        half = draw.integers(64, 112, n // 2, num_kv_heads, size).astype(np.float64)
        mean = draw.integers(4, 12, 1, num_kv_heads, size)
        v[entries] = np.concatenate((half, -half[draw.permutation(n // 2)])) + mean
    return np.zeros((sizes.num_tokens, num_heads, size)), k, v
