"""Functions of tensors, compiled: whole halves of a step, and single rows of the kernel table.

`CompiledFunction` is for the step: traced and compiled at its first call, for those shapes alone; what comes with other
shapes is an error of jax's, never a compilation. `Adopted` is for a row: called while a step is traced, it becomes a
function within it, traced once for all layers alike; called with host tensors, as conformance does, it is compiled for
their shapes and run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import torch

from devices.xla import tree
from devices.xla.environment import array, as_bits, from_bits, is_array, numbers, on_host, tensor, tracing, write


class CompiledFunction:
    """`function`, compiled for the shapes of its first call. Tensors at the positions `given` are donated.

    launched   told the results of each call, for whoever must wait for them
    """

    def __init__(
        self, function: Callable[..., Any], given: tuple[int, ...], launched: Callable[[list[jax.Array]], None]
    ) -> None:
        self._function, self._given, self._launched = function, given, launched
        self._run: Callable[..., list[jax.Array]] | None = None
        self._results: Any = None

    def __call__(self, *args: Any) -> Any:
        leaves: list[torch.Tensor] = []
        structures = [tree.take(arg, leaves) for arg in args]
        inputs = [array(leaf) if is_array(leaf) else numbers(leaf) for leaf in leaves]
        if self._run is None:
            self._run = self._compiled(args, structures, inputs)
        results = self._run(*inputs)
        self._launched(results)
        return tree.put(self._results, map(tensor, results))

    def _compiled(self, args: tuple[Any, ...], structures: list[Any], inputs: list[Any]) -> Any:
        donated: list[int] = []
        first = 0
        for position, arg in enumerate(args):
            num = tree.count(arg)
            if position in self._given:
                donated += range(first, first + num)
            first += num

        def traced(*arrays: jax.Array) -> list[jax.Array]:
            found, self._results = traced_call(self._function, structures, arrays)
            return found

        return jax.jit(traced, donate_argnums=tuple(donated)).lower(*inputs).compile()


def traced_call(function: Callable[..., Any], structures: Any, arrays: Any) -> tuple[list[jax.Array], Any]:
    """Run torch code on jax's arrays. Returns the arrays it gives, and their structure."""
    with tracing():
        leaves = map(tensor, arrays)
        results = function(*(tree.put(structure, leaves) for structure in structures))
        found: list[torch.Tensor] = []
        structure = tree.take(results, found)
        return [array(x) for x in found], structure


class Adopted:
    """A reference as a kernel of the device.

    writes   position of the argument that it writes in place and returns, where it does
    moves    it computes nothing: numbers pass as the bits they are, NaN with its payload too
    """

    def __init__(self, reference: Callable[..., Any], writes: int | None = None, moves: bool = False) -> None:
        self._reference, self._writes, self._moves = reference, writes, moves
        self._made: dict[Any, _Traced] = {}

    def __call__(self, *args: Any, **fixed: Any) -> Any:
        leaves: list[torch.Tensor] = []
        structure = tree.take((args, fixed), leaves)
        made = self._made.get(structure)
        if made is None:
            made = self._made[structure] = _Traced(self._reference, structure, self._moves)
        if leaves and is_array(leaves[0]):
            found = made.run(*map(array, leaves))  # tells the structure of results, too
            return tree.put(made.results, map(tensor, found))
        found = made.run(*map(numbers, leaves))
        if self._writes is None:
            return tree.put(made.results, map(on_host, found))
        written: list[torch.Tensor] = []
        tree.take(args[self._writes], written)
        for target, source in zip(written, found, strict=True):
            write(target, source)
        return args[self._writes]


class _Traced:
    """A function for arguments of one structure, compiled for each of their shapes.

    results   structure of what it gives; known once it has run
    """

    def __init__(self, function: Callable[..., Any], structure: Any, moves: bool) -> None:
        self.results: Any = None

        def traced(*arrays: jax.Array) -> list[jax.Array]:
            def call(both: Any) -> Any:
                args, fixed = both
                return function(*args, **fixed)

            found, self.results = traced_call(call, [structure], map(as_bits, arrays) if moves else arrays)
            return list(map(from_bits, found)) if moves else found

        traced.__name__ = getattr(function, "__name__", "kernel")
        self.run: Callable[..., list[jax.Array]] = jax.jit(traced)
