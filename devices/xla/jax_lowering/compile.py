"""Functions of tensors, compiled: whole halves of a step, and single rows of the kernel table.

`CompiledFunction` is for the step: traced and compiled at its first call, for those shapes alone; what comes with other
shapes is an error of jax's, never a compilation. `Row` is for a row: within a step it becomes a function, traced once
for all layers alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch

from devices.xla import tree
from devices.xla.jax_lowering.environment import (
    array,
    as_bits,
    from_bits,
    is_array,
    numbers,
    on_host,
    tensor,
    tracing,
)


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
        def traced(*arrays: jax.Array) -> list[jax.Array]:
            found, self._results = traced_call(self._function, structures, arrays)
            return found

        return jax.jit(traced, donate_argnums=tuple(tree.places(args, self._given))).lower(*inputs).compile()


def traced_call(function: Callable[..., Any], structures: Any, arrays: Any) -> tuple[list[jax.Array], Any]:
    """Run torch code on jax's arrays. Returns the arrays it gives, and their structure."""
    with tracing():
        leaves = map(tensor, arrays)
        results = function(*(tree.put(structure, leaves) for structure in structures))
        found: list[torch.Tensor] = []
        structure = tree.take(results, found)
        return [array(x) for x in found], structure


class Row:
    """As `devices.xla.lowering.RowFunction` says; compiled for each of the shapes that its arguments have."""

    def __init__(self, function: Callable[..., Any], structure: Any, moves: bool) -> None:
        self._results: Any = None  # their structure; known once it has run

        def traced(*arrays: jax.Array) -> list[jax.Array]:
            def call(both: Any) -> Any:
                args, fixed = both
                return function(*args, **fixed)

            found, self._results = traced_call(call, [structure], map(as_bits, arrays) if moves else arrays)
            return list(map(from_bits, found)) if moves else found

        traced.__name__ = getattr(function, "__name__", "kernel")
        self._run: Callable[..., list[jax.Array]] = jax.jit(traced)

    def within(self, leaves: Sequence[torch.Tensor]) -> Any:
        found = self._run(*map(array, leaves))  # tells the structure of results, too
        return tree.put(self._results, map(tensor, found))

    def on_host(self, leaves: Sequence[torch.Tensor]) -> Any:
        found = self._run(*map(numbers, leaves))
        return tree.put(self._results, map(on_host, found))
