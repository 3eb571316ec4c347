"""Which kernel of a device departs first: every call of some steps beside the reference, with the inputs it had there.

A departure is thus never inherited from a call before.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

from conformance.case import Case
from conformance.engine.beside import Beside, fixed, on_host
from conformance.engine.cases import ROW
from conformance.engine.forced import Forced, Piece, Wanted
from conformance.engine.rig import Rig
from core.kernels.row import Kernel
from core.kernels.table import TABLE
from core.plugin.facts import Need

CHUNK = 48
NUM_STEPS = 6


@dataclass(frozen=True)
class Departure:
    """The first call whose result is further from the reference's than it may be.

    call    how often the row had been called, this call included
    layer   of the model; outside of layers, the parameter used last
    what    how far
    """

    dtype: str
    row: str
    provider: str
    step: int
    call: int
    layer: str
    what: str

    def __str__(self) -> str:
        return (
            f"{self.dtype}: {self.row} of {self.provider} departs in {self.layer} "
            f"(step {self.step}, call {self.call} of {self.row}): {self.what}"
        )


class _Found(Exception):
    """Ends the run at the first departure."""

    def __init__(self, departure: Departure) -> None:
        super().__init__(str(departure))
        self.departure = departure


def bisect(device: str, model: str, dtype: str) -> Departure | None:
    """Run three short texts on a device, first in chunks and then together. None: no call departs.

    Raises: ConfigError, PluginError when the engine cannot be had.
    """
    case = Case.of(ROW, "bisect", model=model, dtype=dtype, num=3, length=120)
    rig, watch = Rig.of(case, device, b"bisect"), _Watch()
    forced = Forced(rig.config(), len(rig.ids), rig.length, watch.tap, eager=True)
    watch.begin(forced)
    added = [forced.add(row) for row in rig.ids]
    try:
        for text in added:
            while num := min(CHUNK, rig.length - 1 - NUM_STEPS - text.start):
                watch.step([Piece(text, num, Wanted.NONE)])
        for _ in range(NUM_STEPS):
            watch.step([Piece(text, 1, Wanted.LAST) for text in added])
    except _Found as found:
        return found.departure
    return None


class _Watch:
    """A tap that compares every call, once `begin` was called."""

    def __init__(self) -> None:
        self._beside = Beside()
        self._forced: Forced | None = None
        self._calls: Counter[str] = Counter()
        self._step, self._layer = 0, ""

    def tap(self, row: str, kernel: Kernel) -> Kernel:
        calls = {"pack_weight": self._pack, "attn_plan": self._plan, "kv_gather": self._unwatched}
        return partial(calls.get(row, self._watched), row, kernel)

    def begin(self, forced: Forced) -> None:
        plan, layouts = forced.plan, forced.assembly.layouts
        head_size = forced.assembly.groups[0].head_size
        need = Need(dtype=plan.dtype, head_size=head_size, page_tokens=plan.page_tokens)
        self._beside.gather = forced.assembly.kernels.bind("kv_gather", need)
        self._beside.kv_error = max(layout.kv_error for layout in layouts)
        self._names = {id(x): name for name, x in forced.runner.weights.items()}
        self._forced = forced

    def step(self, pieces: list[Piece]) -> None:
        """Run a step. Raises: _Found."""
        assert self._forced is not None
        self._step, self._layer = self._step + 1, "front of the layers"
        self._forced.step(pieces)

    def _unwatched(self, row: str, kernel: Kernel, *args: Any, **late: Any) -> Any:
        return kernel(*args, **late)

    def _pack(self, row: str, kernel: Kernel, weight: Any, **late: Any) -> Any:
        before, handle = on_host(weight), kernel(weight, **late)
        self._beside.packed(handle, before)
        return handle

    def _plan(self, row: str, kernel: Kernel, *args: Any, **late: Any) -> Any:
        before = on_host(args)
        plan = self._called(row, kernel, args, late)
        self._beside.planned(plan, before, fixed(row, kernel, late))
        return plan

    def _watched(self, row: str, kernel: Kernel, *args: Any, **late: Any) -> Any:
        forced = self._forced
        if forced is None or not self._beside.judges(row):
            return kernel(*args, **late)
        given = self._given(row, args)
        result = self._called(row, kernel, args, late)
        forced.assembly.device.synchronize()
        worst = self._beside.compare(row, given, fixed(row, kernel, late), result)
        if worst.ratio > 1:
            raise self._found(row, str(worst))
        return result

    def _given(self, row: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments as they are before the call; but pools and plans, and weights, which are known by themselves."""
        if TABLE[row].bundle == "kv":
            return args
        return tuple(x if row == "linear" and i == 1 else on_host(x) for i, x in enumerate(args))

    def _called(self, row: str, kernel: Kernel, args: tuple[Any, ...], late: dict[str, Any]) -> Any:
        """Make the call, and know where in the model it is. Raises: _Found when the kernel raises."""
        self._calls[row] += 1
        for name in [self._names[id(x)] for x in args if id(x) in self._names]:
            number = re.match(r"layers\.(\d+)\.", name)
            self._layer = f"layer {number[1]}" if number else name
        try:
            return kernel(*args, **late)
        except Exception as error:
            raise self._found(row, f"it raises {type(error).__name__}: {error}") from error

    def _found(self, row: str, what: str) -> _Found:
        assert self._forced is not None
        plan = self._forced.plan
        providers = [b.provider for b in plan.bindings if b.row == row]
        return _Found(
            Departure(plan.dtype, row, " or ".join(providers), self._step, self._calls[row], self._layer, what)
        )
