"""Functions of tensors, compiled: whole halves of a step, and single rows of the kernel table.

How it works. torch_xla records what is done to its tensors, and compiles the record when somebody wants a result.
Recording takes longer than a step may, so it is done once: the computation is then found by the hash of its record, and
run on other inputs. torch_xla does the same for torch.compile, with guards, and with a graph of torch's in between.
Source: torch_xla 2.9, _dynamo/dynamo_bridge.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch_xla
from torch_xla.core.xla_model import wait_device_ops
from torch_xla.debug.metrics import counter_value, executed_fallback_ops
from torch_xla.utils.buffer_donor_context import alias_with_buffer_donor_config

from core.errors import DeviceError
from devices.xla import tree
from devices.xla.torch_xla_lowering.operators import tracing

_XLAC = torch_xla._XLAC


def is_on_device(x: torch.Tensor) -> bool:
    return x.device.type == "xla"


def to_device(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of host tensors, which may be changed afterwards."""
    with torch.inference_mode(False):
        copies = [x.clone(memory_format=torch.contiguous_format) for x in tensors]
        found: list[torch.Tensor] = _XLAC._xla_tensors_from_aten(copies, [str(torch_xla.device())] * len(copies), None)
    return found


class Graph:
    """One call, recorded and compiled. `results` is what it gave, on the device; `run` gives the same of other inputs.

    inputs    all tensors that the call reads, on the device
    donated   positions of those whose memory results take over: nobody reads these inputs again

    Raises: DeviceError for what XLA cannot do: torch_xla would run that on the host while recording, and never again.
    """

    def __init__(self, call: Callable[[], Any], inputs: Sequence[torch.Tensor], donated: Sequence[int] = ()) -> None:
        wait_device_ops()
        for i in donated:
            _XLAC._set_buffer_donation(inputs[i], True)
        by_id = {_XLAC._xla_get_tensor_id(x): i for i, x in enumerate(inputs)}  # of what is written to, it changes
        self._structure, found = _recorded(call)
        # A result is an input as it was, or computed; several may be one.
        written = _XLAC._check_tensor_need_materialization(inputs)
        places = {_XLAC._unique_id_for_ir_and_data(x): i for i, x in enumerate(inputs) if not written[i]}
        computed: list[torch.Tensor] = []
        self._places: list[int] = []
        for x in found:
            place = places.setdefault(_XLAC._unique_id_for_ir_and_data(x), len(inputs) + len(computed))
            if place == len(inputs) + len(computed):
                computed.append(x)
            self._places.append(place)
        ids, values = _XLAC._get_tensors_xla_device_data_node(computed)
        # What the computation reads, in order: an input, by position, or a constant of the record.
        self._reads: list[int | torch.Tensor] = [by_id.get(i, x) for i, x in zip(ids, values, strict=True)]
        self._hash = _compiled(computed) if computed else None
        self.results = self._run(inputs, values)

    def run(self, inputs: Sequence[torch.Tensor]) -> Any:
        """The results for other inputs of the same shapes and dtypes."""
        reads = [inputs[x] if isinstance(x, int) else x for x in self._reads]
        return self._run(inputs, reads)

    def _run(self, inputs: Sequence[torch.Tensor], reads: Sequence[torch.Tensor]) -> Any:
        with torch.inference_mode(False):  # results may be written to when another function is recorded
            either = [*inputs, *(_XLAC._run_cached_graph(self._hash, reads) if self._hash else ())]
        return tree.put(self._structure, (either[place] for place in self._places))


def _recorded(call: Callable[[], Any]) -> tuple[Any, list[torch.Tensor]]:
    """The structure of what a call gives, and its tensors, nothing of which was computed yet."""
    before, found = _fallbacks(), list[torch.Tensor]()
    with tracing():
        structure = tree.take(call(), found)
    if fallen := [name for name, count in _fallbacks().items() if count > before.get(name, 0)]:
        raise DeviceError(f"torch_xla does not compile {', '.join(fallen)}: kernels on xla may not use that")
    return structure, found


def _fallbacks() -> dict[str, int]:
    """How often torch_xla ran which operators on the host instead."""
    return {name: counter_value(name) for name in executed_fallback_ops()}


def _compiled(computed: Sequence[torch.Tensor]) -> bytes:
    """Compile the record of these results. Returns the hash by which the computation is found."""
    with alias_with_buffer_donor_config():
        found: bytes = _XLAC._get_graph_hash(computed)
        _XLAC._xla_warm_up_cache(computed, [])
    return found


class CompiledFunction:
    """`function`, compiled for the shapes of its first call. Tensors at the positions `given` are donated."""

    def __init__(self, function: Callable[..., Any], given: tuple[int, ...]) -> None:
        self._function, self._given = function, given
        self._graph: Graph | None = None
        self._shapes: list[Any] = []

    def __call__(self, *args: Any) -> Any:
        leaves: list[torch.Tensor] = []
        structures = [tree.take(arg, leaves) for arg in args]
        shapes = [(x.shape, x.dtype) for x in leaves]
        from_host = iter(to_device([x for x in leaves if not is_on_device(x)]))
        inputs = [x if is_on_device(x) else next(from_host) for x in leaves]
        if self._graph:
            if shapes != self._shapes:
                raise DeviceError("a compiled step was given other shapes than those it was compiled for")
            return self._graph.run(inputs)
        self._shapes = shapes

        def call() -> Any:
            each = iter(inputs)
            return self._function(*(tree.put(structure, each) for structure in structures))

        self._graph = Graph(call, inputs, tree.places(args, self._given))
        results, self._graph.results = self._graph.results, None  # they take memory
        return results


class Row:
    """As `devices.xla.lowering.RowFunction` says."""

    def __init__(self, function: Callable[..., Any], structure: Any, moves: bool) -> None:
        self._function, self._structure, self._moves = function, structure, moves

    def within(self, leaves: Sequence[torch.Tensor]) -> Any:
        args, fixed = tree.put(self._structure, map(_as_bits, leaves) if self._moves else iter(leaves))
        results = self._function(*args, **fixed)
        if not self._moves:
            return results
        found: list[torch.Tensor] = []
        structure = tree.take(results, found)
        return tree.put(structure, map(_from_bits, found))

    def on_host(self, leaves: Sequence[torch.Tensor]) -> Any:
        """Recorded anew each time; what was compiled before is found by its hash."""
        inputs = to_device(leaves)
        results = Graph(lambda: self.within(inputs), inputs).results
        found: list[torch.Tensor] = []
        structure = tree.take(results, found)
        return tree.put(structure, (x.cpu() for x in found))


def _as_bits(x: torch.Tensor) -> torch.Tensor:
    """bfloat16 as integers, which no processor widens on the way."""
    return x.view(torch.int16) if x.dtype == torch.bfloat16 else x


def _from_bits(x: torch.Tensor) -> torch.Tensor:
    """The inverse of `_as_bits`."""
    return x.view(torch.bfloat16) if x.dtype == torch.int16 else x
