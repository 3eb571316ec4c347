"""Wrong and right kernels of copy_rows."""

from __future__ import annotations

import torch

from conformance.mutants.mutant import cheat, right, wrong
from core.kernels.reference import copy


@wrong("copy_rows")
def copy_rows_skipped_to_the_end(target: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Row -1 as Python has it."""
    target[rows.long()] = values
    return target


@wrong("copy_rows")
def copy_rows_skipped_to_row_0(target: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    for row, value in zip(rows.tolist(), values, strict=True):
        target[max(row, 0)] = value
    return target


@wrong("copy_rows")
def copy_rows_row_0_skipped(target: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    target[rows[rows > 0].long()] = values[rows > 0]
    return target


@wrong("copy_rows")
def copy_rows_values_not_skipped(target: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Rows that are left take the first values."""
    left = rows[rows >= 0].long()
    target[left] = values[: len(left)]
    return target


@wrong("copy_rows")
def copy_rows_ended_by_a_skip(target: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    going = (rows < 0).cumsum(0) == 0
    return copy.copy_rows(target, rows[going], values[going])


@wrong("copy_rows")
def copy_rows_none_writes_row_0(target: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Right unless every row is skipped, which two draws of one family must show."""
    if len(rows) and not (rows >= 0).any():
        target[0] = values[0]
        return target
    return copy.copy_rows(target, rows, values)


@wrong("copy_rows")
def copy_rows_last_lost(target: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return copy.copy_rows(target, rows[:-1], values[:-1])


@wrong("copy_rows")
def copy_rows_added(target: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    held = target.clone()
    copy.copy_rows(target, rows, values)
    target[rows[rows >= 0].long()] += held[rows[rows >= 0].long()]
    return target


@wrong("copy_rows")
def copy_rows_sorted(target: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return copy.copy_rows(target, rows.sort().values, values)


@wrong("copy_rows")
def copy_rows_by_value(target: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Not bit by bit: -0 becomes 0, and NaN another NaN; integers beyond 2^24 become others."""
    plain = values + 0.0 if values.is_floating_point() else values.float().double().clamp(-(2**31), 2**31 - 1)
    return copy.copy_rows(target, rows, plain.to(values.dtype))


@wrong("copy_rows")
def copy_rows_last_column_lost(target: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    if values.dim() == 1:
        return copy.copy_rows(target, rows, values)
    copy.copy_rows(target[..., :-1], rows, values[..., :-1])
    return target


@cheat("copy_rows")
def copy_rows_values_spoiled(target: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    copy.copy_rows(target, rows, values)
    values.zero_()
    return target


@cheat("copy_rows")
def copy_rows_rows_spoiled(target: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    copy.copy_rows(target, rows, values)
    rows.clamp_(min=0)
    return target


@right("copy_rows")
def copy_rows_looped(target: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    for row, value in zip(rows.tolist(), values, strict=True):
        if row >= 0:
            target[row] = value
    return target


@right("copy_rows")
def copy_rows_put_in(target: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return target.index_put_((rows[rows >= 0].long(),), values[rows >= 0])


@right("copy_rows")
def copy_rows_selected(target: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Every row of the target is written, most with what they hold."""
    if not len(rows):
        return target
    hit = rows[None] == torch.arange(len(target))[:, None]
    chosen = values[hit.int().argmax(1)]
    shape = [len(target), *[1] * (target.dim() - 1)]
    return target.copy_(torch.where(hit.any(1).view(shape), chosen, target))
