"""Moves of rows and pages by their definition: loops over numpy arrays of raw bits, whatever they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Bits: TypeAlias = npt.NDArray[np.unsignedinteger]


def embed(ids: Sequence[int], table: Bits, first: int) -> Bits:
    """The row of each id; zeros for ids that the table, which starts at id `first`, does not have."""
    out = np.zeros((len(ids), *table.shape[1:]), table.dtype)
    for i, token in enumerate(ids):
        if first <= token < first + len(table):
            out[i] = table[token - first]
    return out


def gather_rows(x: Bits, rows: Sequence[int]) -> Bits:
    out = np.zeros((len(rows), *x.shape[1:]), x.dtype)
    for i, row in enumerate(rows):
        out[i] = x[row]
    return out


def take_ids(ids: Sequence[int], source_rows: Sequence[int], last_ids: Sequence[int]) -> list[int]:
    return [last_ids[row] if row else token for token, row in zip(ids, source_rows, strict=True)]


def put_rows(target: Bits, rows: Sequence[int], values: Bits) -> Bits:
    """`target` with values in these rows; -1 skips."""
    out = target.copy()
    for row, value in zip(rows, values, strict=True):
        if row >= 0:
            out[row] = value
    return out


def copy_pages(target: Bits, source: Bits, target_pages: Sequence[int], source_pages: Sequence[int], axis: int) -> Bits:
    """`target` with pages of `source` as it was before; pages lie along `axis`."""
    out, old = np.moveaxis(target.copy(), axis, 0), np.moveaxis(source.copy(), axis, 0)
    for into, out_of in zip(target_pages, source_pages, strict=True):
        out[into] = old[out_of]
    return np.ascontiguousarray(np.moveaxis(out, 0, axis))


def write_slots(pool: Bits, slots: Sequence[int], x: Bits) -> Bits:
    """`pool` [pages, page, H, D] with x [T, H, D] at slots = page * page_tokens + offset; -1 skips."""
    out = pool.copy()
    for slot, row in zip(slots, x, strict=True):
        if slot >= 0:
            out[slot // pool.shape[1], slot % pool.shape[1]] = row
    return out
