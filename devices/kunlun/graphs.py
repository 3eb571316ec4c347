"""Steps as graphs: what a function launches is recorded once for each shape, and replayed.

How it works. A graph reads and writes the memory it was captured with. So its inputs stay where they were: arguments of
later calls that lie elsewhere are copied to the places of the first call's. What it gives is copied to fresh memory,
because a result must outlive the next replay; what it was given to update in place stays in place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from devices.kunlun.vendor import Graph, Vendor


class Captured:
    """`function`, for arguments of one structure. See `core.plugin.Device.compile`."""

    def __init__(self, vendor: Vendor, function: Callable[..., Any], given: tuple[int, ...]) -> None:
        self._vendor, self._function, self._given = vendor, function, given
        self._graph: Graph | None = None
        self._inputs: list[torch.Tensor] = []
        self._result: Any = None

    def __call__(self, *args: Any) -> Any:
        leaves: list[torch.Tensor] = []
        _each(args, leaves.append)
        if self._graph is None:
            self._capture(args, leaves)
        for mine, theirs in zip(self._inputs, leaves, strict=True):
            if mine.data_ptr() != theirs.data_ptr():
                mine.copy_(theirs, non_blocking=True)
        assert self._graph is not None
        self._graph.replay()
        kept = {x.data_ptr() for x in self._updated}
        return _each(self._result, lambda x: x if x.data_ptr() in kept else x.clone())

    def _capture(self, args: tuple[Any, ...], leaves: list[torch.Tensor]) -> None:
        self._inputs = leaves
        self._updated: list[torch.Tensor] = []
        for position in self._given:
            _each(args[position], self._updated.append)
        graph = self._vendor.graph()
        with graph.capture():
            self._result = self._function(*args)
        self._graph = graph


def _each(tree: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The tree of dicts, lists, tuples and dataclasses with every tensor in it changed."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        return {name: _each(value, change) for name, value in tree.items()}
    if isinstance(tree, tuple | list):
        children = [_each(value, change) for value in tree]
        return type(tree)(*children) if hasattr(tree, "_fields") else type(tree)(children)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        names = [field.name for field in dataclasses.fields(tree)]
        return dataclasses.replace(tree, **{name: _each(getattr(tree, name), change) for name in names})
    return tree
