"""Wrong and right kernels of take_ids and put_ids."""

from __future__ import annotations

import torch

from conformance.mutants.mutant import cheat, right, wrong

# take_ids


@wrong("take_ids")
def take_ids_null_row_taken(ids: torch.Tensor, source_rows: torch.Tensor, last_ids: torch.Tensor) -> torch.Tensor:
    return last_ids[source_rows]


@wrong("take_ids")
def take_ids_never_taken(ids: torch.Tensor, source_rows: torch.Tensor, last_ids: torch.Tensor) -> torch.Tensor:
    return ids.clone()


@wrong("take_ids")
def take_ids_row_off_by_one(ids: torch.Tensor, source_rows: torch.Tensor, last_ids: torch.Tensor) -> torch.Tensor:
    return torch.where(source_rows > 0, last_ids[(source_rows - 1).clamp(min=0)], ids)


@wrong("take_ids")
def take_ids_row_1_is_null(ids: torch.Tensor, source_rows: torch.Tensor, last_ids: torch.Tensor) -> torch.Tensor:
    return torch.where(source_rows > 1, last_ids[source_rows], ids)


@wrong("take_ids")
def take_ids_where_the_id_is_0(ids: torch.Tensor, source_rows: torch.Tensor, last_ids: torch.Tensor) -> torch.Tensor:
    return torch.where(ids == 0, last_ids[source_rows], ids)


@wrong("take_ids")
def take_ids_through_float(ids: torch.Tensor, source_rows: torch.Tensor, last_ids: torch.Tensor) -> torch.Tensor:
    mask = (source_rows > 0).float()
    return (last_ids[source_rows] * mask + ids * (1 - mask)).int()


@cheat("take_ids")
def take_ids_in_place(ids: torch.Tensor, source_rows: torch.Tensor, last_ids: torch.Tensor) -> torch.Tensor:
    return ids.copy_(torch.where(source_rows > 0, last_ids[source_rows], ids))


@right("take_ids")
def take_ids_looped(ids: torch.Tensor, source_rows: torch.Tensor, last_ids: torch.Tensor) -> torch.Tensor:
    taken = [int(last_ids[r]) if r else i for i, r in zip(ids.tolist(), source_rows.tolist(), strict=True)]
    return torch.tensor(taken, dtype=torch.int32)


@right("take_ids")
def take_ids_masked(ids: torch.Tensor, source_rows: torch.Tensor, last_ids: torch.Tensor) -> torch.Tensor:
    return ids.masked_scatter(source_rows != 0, last_ids[source_rows[source_rows != 0]])


# put_ids


@wrong("put_ids")
def put_ids_row_off_by_one(last_ids: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return last_ids.index_copy_(0, (rows.long() + 1) % len(last_ids), ids)


@wrong("put_ids")
def put_ids_last_lost(last_ids: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return last_ids.index_copy_(0, rows[:-1].long(), ids[:-1])


@wrong("put_ids")
def put_ids_in_order_of_rows(last_ids: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return last_ids.index_copy_(0, rows.sort().values.long(), ids)


@wrong("put_ids")
def put_ids_scratch_is_row_1(last_ids: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return last_ids.index_copy_(0, rows.clamp(min=1).long(), ids)


@wrong("put_ids")
def put_ids_added(last_ids: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return last_ids.index_add_(0, rows.long(), ids)


@wrong("put_ids")
def put_ids_scratch_at_the_end(last_ids: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return last_ids.index_copy_(0, torch.where(rows > 0, rows, len(last_ids) - 1).long(), ids)


@cheat("put_ids")
def put_ids_nothing(last_ids: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return last_ids


@right("put_ids")
def put_ids_indexed(last_ids: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    last_ids[rows.long()] = ids
    return last_ids


@right("put_ids")
def put_ids_scattered(last_ids: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return last_ids.scatter(0, rows.long(), ids)


@right("put_ids")
def put_ids_scratch_skipped(last_ids: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    for row, token in zip(rows.tolist(), ids, strict=True):
        if row:
            last_ids[row] = token
    return last_ids
