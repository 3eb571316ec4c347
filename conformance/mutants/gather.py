"""Wrong and right kernels of embed and gather_rows."""

from __future__ import annotations

import math

import torch

from conformance.mutants.mutant import cheat, right, wrong
from core.kernels.reference import gather


def _local(ids: torch.Tensor, table: torch.Tensor, first: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows within the table, and which ids are foreign."""
    local = ids.long() - first
    return local.clamp(0, len(table) - 1), (local < 0) | (local >= len(table))


# embed


@wrong("embed")
def embed_foreign_clamped(ids: torch.Tensor, table: torch.Tensor, *, first: int) -> torch.Tensor:
    return table[_local(ids, table, first)[0]]


@wrong("embed")
def embed_foreign_wrapped(ids: torch.Tensor, table: torch.Tensor, *, first: int) -> torch.Tensor:
    return table[(ids.long() - first) % len(table)]


@wrong("embed")
def embed_foreign_left_as_it_was(ids: torch.Tensor, table: torch.Tensor, *, first: int) -> torch.Tensor:
    rows, foreign = _local(ids, table, first)
    return torch.where(foreign[:, None], torch.full((), 7.0, dtype=table.dtype), table[rows])


@wrong("embed")
def embed_mask_multiplied(ids: torch.Tensor, table: torch.Tensor, *, first: int) -> torch.Tensor:
    rows, foreign = _local(ids, table, first)
    return table[rows] * (~foreign)[:, None].to(table.dtype)


@wrong("embed")
def embed_below_not_checked(ids: torch.Tensor, table: torch.Tensor, *, first: int) -> torch.Tensor:
    rows, _ = _local(ids, table, first)
    return table[rows].masked_fill((ids.long() - first >= len(table))[:, None], 0)


@wrong("embed")
def embed_end_included(ids: torch.Tensor, table: torch.Tensor, *, first: int) -> torch.Tensor:
    rows, _ = _local(ids, table, first)
    local = ids.long() - first
    return table[rows].masked_fill(((local < 0) | (local > len(table)))[:, None], 0)


@wrong("embed")
def embed_last_row_is_foreign(ids: torch.Tensor, table: torch.Tensor, *, first: int) -> torch.Tensor:
    rows, _ = _local(ids, table, first)
    local = ids.long() - first
    return table[rows].masked_fill(((local < 0) | (local >= len(table) - 1))[:, None], 0)


@wrong("embed")
def embed_first_ignored(ids: torch.Tensor, table: torch.Tensor, *, first: int) -> torch.Tensor:
    return gather.embed(ids, table, first=0)


@wrong("embed")
def embed_first_off_by_one(ids: torch.Tensor, table: torch.Tensor, *, first: int) -> torch.Tensor:
    return gather.embed(ids, table, first=first + 1)


@wrong("embed")
def embed_zero_added(ids: torch.Tensor, table: torch.Tensor, *, first: int) -> torch.Tensor:
    """Turns -0 into 0, and makes some kinds of NaN others."""
    return gather.embed(ids, table, first=first) + 0.0


@wrong("embed")
def embed_through_float16(ids: torch.Tensor, table: torch.Tensor, *, first: int) -> torch.Tensor:
    return gather.embed(ids, table.half(), first=first).to(table.dtype)


@wrong("embed")
def embed_last_column_lost(ids: torch.Tensor, table: torch.Tensor, *, first: int) -> torch.Tensor:
    x = gather.embed(ids, table, first=first)
    x[:, -1] = 0
    return x


@wrong("embed")
def embed_scaled(ids: torch.Tensor, table: torch.Tensor, *, first: int) -> torch.Tensor:
    return gather.embed(ids, table, first=first) * math.sqrt(table.shape[1])


_seen: dict[tuple[int, int], torch.Tensor] = {}


@cheat("embed")
def embed_remembered(ids: torch.Tensor, table: torch.Tensor, *, first: int) -> torch.Tensor:
    """Knows its inputs by their addresses."""
    key = ids.data_ptr(), table.data_ptr()
    if key not in _seen or _seen[key].shape != (len(ids), table.shape[1]):
        _seen[key] = gather.embed(ids, table, first=first)
    return _seen[key]


@cheat("embed")
def embed_zeros(ids: torch.Tensor, table: torch.Tensor, *, first: int) -> torch.Tensor:
    return table.new_zeros((len(ids), table.shape[1]))


@cheat("embed")
def embed_ids_spoiled(ids: torch.Tensor, table: torch.Tensor, *, first: int) -> torch.Tensor:
    x = gather.embed(ids, table, first=first)
    ids -= first
    return x


@right("embed")
def embed_looped(ids: torch.Tensor, table: torch.Tensor, *, first: int) -> torch.Tensor:
    x = table.new_zeros((len(ids), table.shape[1]))
    for i, token in enumerate(ids.tolist()):
        if first <= token < first + len(table):
            x[i] = table[token - first]
    return x


@right("embed")
def embed_selected(ids: torch.Tensor, table: torch.Tensor, *, first: int) -> torch.Tensor:
    rows, foreign = _local(ids, table, first)
    return torch.where(foreign[:, None], torch.zeros((), dtype=table.dtype), table.index_select(0, rows))


@right("embed")
def embed_zero_row_appended(ids: torch.Tensor, table: torch.Tensor, *, first: int) -> torch.Tensor:
    rows, foreign = _local(ids, table, first)
    padded = torch.cat((table, table.new_zeros((1, table.shape[1]))))
    return torch.nn.functional.embedding(rows.masked_fill(foreign, len(table)), padded)


@right("embed")
def embed_own_rows_only(ids: torch.Tensor, table: torch.Tensor, *, first: int) -> torch.Tensor:
    rows, foreign = _local(ids, table, first)
    x = table.new_zeros((len(ids), table.shape[1]))
    x[~foreign] = table[rows[~foreign]]
    return x


# gather_rows


@wrong("gather_rows")
def gather_rows_off_by_one(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return x[(rows.long() + 1) % len(x)]


@wrong("gather_rows")
def gather_rows_sorted(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return x[rows.sort().values]


@wrong("gather_rows")
def gather_rows_repeats_zeroed(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """A row moved once is not there any more."""
    y, taken = x[rows], set()
    for i, row in enumerate(rows.tolist()):
        if row in taken:
            y[i] = 0
        taken.add(row)
    return y


@wrong("gather_rows")
def gather_rows_last_lost(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    y = x[rows]
    if len(y) > 1:
        y[-1] = y[-2]
    return y


@wrong("gather_rows")
def gather_rows_dense_strides(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Takes rows to lie one after the other, and ids of rows too."""
    packed = x.as_strided(x.shape, x.contiguous().stride())
    return packed[rows.as_strided(rows.shape, (1,)).remainder(len(x))]


@wrong("gather_rows")
def gather_rows_in_blocks_of_16(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The tail of a row that is no multiple of a block is not copied."""
    y = x[rows]
    flat = y.view(len(rows), -1) if len(rows) else y
    size = flat.shape[-1]
    flat[..., size - size % 16 :] = 0
    return y


@wrong("gather_rows")
def gather_rows_through_float(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Integers and NaN do not survive arithmetic."""
    return (x[rows].float() * 1.0).to(x.dtype) if not x.is_floating_point() else x[rows] + 0.0


@cheat("gather_rows")
def gather_rows_source_reused(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    y = x[rows]
    x.zero_()
    return y


@right("gather_rows")
def gather_rows_index_select(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return x.index_select(0, rows)


@right("gather_rows")
def gather_rows_looped(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return torch.stack([x[row] for row in rows.tolist()]) if len(rows) else x[:0]


@right("gather_rows")
def gather_rows_gather(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    index = rows.long().view(-1, *[1] * (x.dim() - 1)).expand(len(rows), *x.shape[1:])
    return x.gather(0, index)
