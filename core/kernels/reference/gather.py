"""Rows chosen by index: embeddings, rope rows, logit rows, and the latest sampled ids.

Legend: T tokens, R and K rows, V vocabulary, E hidden size, L logit rows. Ids and rows are int32.
"""

import torch


def embed(ids: torch.Tensor, table: torch.Tensor, *, first: int) -> torch.Tensor:
    """Rows of `table` [V, E], which holds the ids from `first` on: [T, E]. Ids held elsewhere give zeros."""
    local = ids - first
    foreign = (local < 0) | (local >= table.shape[0])
    return table[local.clamp(0, table.shape[0] - 1)].masked_fill(foreign[:, None], 0)


def gather_rows(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """x [R, ...] and rows [K] -> [K, ...]."""
    return x[rows]


def take_ids(ids: torch.Tensor, source_rows: torch.Tensor, last_ids: torch.Tensor) -> torch.Tensor:
    """ids [T], replaced by last_ids[source_rows] where the source row is not 0, the null row."""
    return torch.where(source_rows > 0, last_ids[source_rows], ids)


def put_ids(last_ids: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Write ids [L] into last_ids [R] in place. Rows are distinct, except for row 0, which holds anything."""
    return last_ids.index_copy_(0, rows.long(), ids)
