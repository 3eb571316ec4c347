"""Cases that gather and scatter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from conformance.onnx_cases.load import OnnxCase
from conformance.onnx_cases.stand import Adapter, Outputs, Stand, only

TakeRows = Callable[[Stand, torch.Tensor, torch.Tensor], torch.Tensor]


def embed_rows(stand: Stand, table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Rows ids [K] of table [V, E] by embed. Ids from -V on: the table twice holds the ids from -V to V - 1."""
    size = len(table)
    whole = torch.cat((table, table))
    kernel = stand.bind("embed", first=-size)
    return stand.get(kernel(stand.put("ids", ids.to(torch.int32)), stand.put("table", whole)))


def gather_rows(stand: Stand, table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Rows ids [K], from 0 on, of table [V, E] by gather_rows."""
    return stand.get(stand.bind("gather_rows")(stand.put("x", table), stand.put("rows", ids.to(torch.int32))))


def _gather(case: OnnxCase, stand: Stand) -> Outputs:
    """The axis that is indexed comes first, the others are one."""
    data, indices = case.inputs["data"], case.inputs["indices"]
    axis = case.attributes["axis"]
    first = data.movedim(axis, 0)
    rows = embed_rows(stand, first.flatten(1) if first.dim() > 1 else first[:, None], indices.flatten())
    y = rows.view(len(rows), *first.shape[1:]).movedim(0, axis)
    return only(case, y.reshape(*y.shape[:axis], *indices.shape, *y.shape[axis + 1 :]))


def _gather_elements(case: OnnxCase, stand: Stand) -> Outputs:
    """A table per column, of one number a row."""
    axis = case.attributes["axis"]
    data, indices = (case.inputs[name].movedim(axis, 0) for name in ("data", "indices"))
    columns = [embed_rows(stand, data[:, j : j + 1], indices[:, j]) for j in range(data.shape[1])]
    return only(case, torch.cat(columns, 1).movedim(0, axis))


def _gather_nd(take: TakeRows, case: OnnxCase, stand: Stand) -> Outputs:
    data, indices = case.inputs["data"], case.inputs["indices"]
    if case.attributes.get("batch_dims"):
        found = [_rows_at(take, stand, x, at[None]) for x, at in zip(data, indices, strict=True)]
    else:
        found = [_rows_at(take, stand, data, indices.reshape(-1, indices.shape[-1]))]
    (wanted,) = case.outputs.values()
    return only(case, torch.cat(found).view(wanted.shape))


def _rows_at(take: TakeRows, stand: Stand, data: torch.Tensor, tuples: torch.Tensor) -> torch.Tensor:
    """data[i][j]... for every tuple: one index after the other."""
    found = take(stand, data.flatten(1), tuples[:, 0]).view(-1, *data.shape[1:])
    for ids in tuples[:, 1:].unbind(1):
        parts = [take(stand, x.reshape(len(x), -1), i[None]) for x, i in zip(found, ids, strict=True)]
        found = torch.cat(parts).view(-1, *found.shape[2:])
    return found


def _copy(stand: Stand, target: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    there = stand.put("target", target, may_change=True)
    return stand.get(
        stand.bind("copy_rows")(there, stand.put("rows", rows.to(torch.int32)), stand.put("values", values))
    )


def _scatter_elements(case: OnnxCase, stand: Stand) -> Outputs:
    """A target per column, of one number a row."""
    axis = case.attributes.get("axis", 0)
    data, indices, updates = (case.inputs[name].movedim(axis, 0) for name in ("data", "indices", "updates"))
    columns = []
    for j in range(data.shape[1]):
        target = data[:, j : j + 1]
        columns.append(_copy(stand, target, indices[:, j], updates[:, j : j + 1]) if j < indices.shape[1] else target)
    return only(case, torch.cat(columns, 1).movedim(0, axis))


def _scatter_nd(case: OnnxCase, stand: Stand) -> Outputs:
    return only(case, _copy(stand, case.inputs["data"], case.inputs["indices"][:, 0], case.inputs["updates"]))


GATHER = Adapter("embed", "the axis that is indexed comes first", _gather)
GATHER_ELEMENTS = Adapter("embed", "a table per column", _gather_elements)
GATHER_ND = Adapter("embed", "one index after the other", partial(_gather_nd, embed_rows))
GATHER_ND_INTEGERS = Adapter("gather_rows", "one index after the other", partial(_gather_nd, gather_rows))
SCATTER_ELEMENTS = Adapter("copy_rows", "a target per column", _scatter_elements)
SCATTER_ND = Adapter("copy_rows", "rows", _scatter_nd)
