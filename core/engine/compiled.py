"""The halves of a step on a device that compiles: each is compiled once for every shape, before the engine serves.

Design. What is compiled must be few: the forward, whose shapes are those of the batch; drawing, whose shapes follow
from the number of logit rows alone, plain or with everything that requests can ask for; and the report of
log-probabilities. So a shape of the batch costs one compilation, whatever its requests ask of their draws. `warm_up`
runs every shape on padding. A shape that comes up later is compiled then, while requests wait: it is counted and said,
or refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from core.clock import SYSTEM
from core.engine.columns import FULL_SORT
from core.engine.pack import Packer
from core.engine.shaped import ShapedStep, shapes_alone
from core.engine.step_input import DrawInput, ShapeKey, StepInput
from core.errors import DeviceError

if TYPE_CHECKING:
    from core.engine.flight import Reported
    from core.engine.passes import Carry
    from core.engine.step_function import StepFunction
    from core.model.layers import Planes, Weights
    from core.plugin.device import Device

_log = logging.getLogger(__name__)


@dataclass
class Compiles:
    """How many functions were compiled, what that took, and how many of them after the warm-up.

    refuse_late   a function that would be compiled after the warm-up is an error: for certification
    """

    num: int = 0
    seconds: float = 0.0
    num_late: int = 0
    is_warm: bool = False
    refuse_late: bool = False

    def begin(self, key: tuple[Any, ...]) -> None:
        """A function is about to be compiled. Raises: DeviceError for a late one, where those are refused."""
        if not self.is_warm:
            return
        cause = f"shape {key} was not among those that were compiled at the start"
        if self.refuse_late:
            raise DeviceError(f"{cause}: mend DeviceFacts.shapes, which do not name it")
        self.num_late += 1
        _log.warning("compiling while requests wait: %s", cause)

    def add(self, seconds: float) -> None:
        self.num += 1
        self.seconds += seconds


class CompiledStep(ShapedStep):
    """As `StepFunction`, with its halves compiled for each shape.

    has_lost   a function failed that was given the KV cache or the ids drawn last: they are gone
    """

    def __init__(self, step: StepFunction, device: Device) -> None:
        super().__init__(step, device)
        self.compiles = Compiles()
        self.has_lost = False

    def forward(
        self, w: Weights, x: StepInput, last_ids: torch.Tensor, kv: list[list[Planes]]
    ) -> tuple[torch.Tensor, torch.Tensor, Carry | None, list[list[Planes]]]:
        found: tuple[torch.Tensor, torch.Tensor, Carry | None, list[list[Planes]]]
        found = self._run(_key("forward", x), self._step.forward, (3,), w, shapes_alone(x), last_ids, kv)
        return found

    def draw(
        self, x: DrawInput, logits_LV: torch.Tensor, last_ids: torch.Tensor, grammar_LW: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        key = ("draw", len(x.counter), x.greedy, x.top_k_max, x.extras is not None, grammar_LW is not None)
        found: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
        found = self._run(key, self._step.draw, (2,), x, logits_LV, last_ids, grammar_LW)
        return found

    def _foretell(self, w: Weights, x: StepInput, carry: Carry, *tables: Any) -> Any:
        assert self._step.foretell is not None
        return self._run(_key("foretell", x), self._step.foretell, (4, 5), w, shapes_alone(x), carry, *tables)

    def report(self, x: DrawInput, logits_LV: torch.Tensor, last_ids: torch.Tensor) -> Reported | None:
        if x.extras is None or x.extras.num_logprobs is None:
            return None
        key = ("report", len(x.counter), x.extras.num_logprobs)
        found: Reported = self._run(key, self._step.report, (), x, logits_LV, last_ids)
        return found

    def _run(self, key: tuple[Any, ...], function: Callable[..., Any], given: tuple[int, ...], *args: Any) -> Any:
        made = self._made.get(key)
        if made is not None:
            return self._call(made, given, args)
        self.compiles.begin(key)
        start_s = SYSTEM.now_s()
        made = self._device.compile(function, key, given)
        found = self._call(made, given, args)  # a device may compile only now
        self.compiles.add(SYSTEM.now_s() - start_s)
        self._made[key] = made
        return found

    def _call(self, made: Callable[..., Any], given: tuple[int, ...], args: tuple[Any, ...]) -> Any:
        try:
            return made(*args)
        except BaseException:
            self.has_lost = self.has_lost or bool(given)
            raise


def _key(half: str, x: StepInput) -> tuple[Any, ...]:
    return half, x.key.tokens, x.key.seqs, x.key.blocks, x.key.logits


def warm_up(
    step: CompiledStep,
    packer: Packer,
    weights: Weights,
    last_ids: torch.Tensor,
    scratch: torch.Tensor,
    kv: list[list[Planes]],
    progress: Callable[[int, int], None],
) -> tuple[torch.Tensor, torch.Tensor, list[list[Planes]]]:
    """Run every shape there can be, on padding. Returns last_ids, scratch and kv, as they are afterwards.

    progress   called with shapes done and shapes in all
    """
    keys = list(packer.shape_keys())
    drawn: set[int] = set()
    for done, key in enumerate(keys):
        progress(done, len(keys))
        padding = packer.padding(key)
        logits_LV, _, carry, kv = step.forward(weights, padding, last_ids, kv)
        if step.foretell:
            _, scratch, kv = step.foretell(weights, padding, carry, last_ids, scratch, kv)
        if key.logits in drawn:
            continue
        drawn.add(key.logits)
        for x in _draws(packer, key):
            mask_LW = packer.grammar_mask([], b"", key) if x.extras else None
            _, last_ids, _ = step.draw(x, logits_LV, last_ids, mask_LW)
            if x.extras and x.greedy:
                step.report(x, logits_LV, last_ids)
    progress(len(keys), len(keys))
    step.compiles.is_warm = bool(keys)
    return last_ids, scratch, kv


def _draws(packer: Packer, key: ShapeKey) -> Iterator[DrawInput]:
    """Greedy and not, plain and with everything."""
    for extras in (False, True):
        x = packer.padding(key, extras=extras).draws
        if x.extras:
            x = replace(x, extras=replace(x.extras, num_logprobs=packer.most_logprobs))
        yield x
        yield replace(x, greedy=False, top_k_max=FULL_SORT)
