"""Rows of the kernel table, adopted: the reference as a kernel of the device.

Called while a step is traced, a row becomes part of it. Called with host tensors, as conformance does, it is compiled
for their shapes and run by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from devices.xla import tree
from devices.xla.lowering import Lowering, RowFunction


class Adopted:
    """A reference as a kernel of the device.

    writes   position of the argument that it writes in place and returns, where it does
    moves    as in `Lowering.row`
    """

    def __init__(
        self, lowering: Lowering, reference: Callable[..., Any], writes: int | None = None, moves: bool = False
    ) -> None:
        self._lowering, self._reference, self._writes, self._moves = lowering, reference, writes, moves
        self._made: dict[Any, RowFunction] = {}

    def __call__(self, *args: Any, **fixed: Any) -> Any:
        leaves: list[torch.Tensor] = []
        structure = tree.take((args, fixed), leaves)
        made = self._made.get(structure)
        if made is None:
            made = self._made[structure] = self._lowering.row(self._reference, structure, self._moves)
        if leaves and self._lowering.holds(leaves[0]):
            return made.within(leaves)
        found = made.on_host(leaves)
        if self._writes is None:
            return found
        targets: list[torch.Tensor] = []
        sources: list[torch.Tensor] = []
        tree.take(args[self._writes], targets)
        tree.take(found, sources)
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)
        return args[self._writes]
