"""Tensors out of, and back into, what functions take and give: dicts, lists, tuples and dataclasses of them.

A structure without its tensors is a `Node`, or `LEAF` where a tensor stands. It can be compared and hashed, as long as
what is neither of these can be.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch


class _Leaf:
    """Where a tensor stands."""


LEAF = _Leaf()


class Node(NamedTuple):
    """What holds other things: its type, the names they have in it (if they have any), and they themselves."""

    kind: type
    names: tuple[Any, ...] | None
    children: tuple[Any, ...]


def take(tree: Any, leaves: list[torch.Tensor]) -> Any:
    """The structure of `tree`; its tensors are appended to `leaves`."""
    if isinstance(tree, torch.Tensor):
        leaves.append(tree)
        return LEAF
    if isinstance(tree, Mapping):
        return Node(dict, tuple(tree), tuple(take(value, leaves) for value in tree.values()))
    if isinstance(tree, tuple | list):
        return Node(type(tree), None, tuple(take(value, leaves) for value in tree))
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        names = tuple(field.name for field in dataclasses.fields(tree))
        return Node(type(tree), names, tuple(take(getattr(tree, name), leaves) for name in names))
    return tree


def put(structure: Any, leaves: Iterator[Any]) -> Any:
    """A tree of this structure with these leaves."""
    if structure is LEAF:
        return next(leaves)
    if not isinstance(structure, Node):
        return structure
    children = [put(child, leaves) for child in structure.children]
    if structure.names is None:
        return structure.kind(*children) if hasattr(structure.kind, "_fields") else structure.kind(children)
    if structure.kind is dict:
        return dict(zip(structure.names, children, strict=True))
    return structure.kind(**dict(zip(structure.names, children, strict=True)))


def places(args: Sequence[Any], given: Sequence[int]) -> list[int]:
    """Where the tensors of the arguments at the positions `given` are, among those of all arguments."""
    found: list[int] = []
    leaves: list[torch.Tensor] = []
    for position, arg in enumerate(args):
        first = len(leaves)
        take(arg, leaves)
        if position in given:
            found += range(first, len(leaves))
    return found
