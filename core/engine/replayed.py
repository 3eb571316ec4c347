"""Steps in which every token draws, replayed by a device that takes steps of any shape.

Design. Between the kernels of a small step the host works as long as the device does. A device that can replay a step
(`DeviceFacts.replayed_tokens`) is given those that come again and again, those of decoding: the last token of each
sequence, and drafts. They are made of few shapes (`core.engine.pack`): as many sequences as tokens, some of which have
none, and block tables of few widths. Their forward is compiled when its shape first comes up, and so are foretelling,
and drawing where that is greedy and plain. All other steps, and parts of steps, run as they are. What a device cannot
replay runs as it is from then on, and that is said: by the plan where it is so from the start, else in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from core.engine.pack import Packer
from core.engine.shaped import ShapedStep, shapes_alone
from core.engine.step_input import DrawInput, ShapeKey, StepInput
from core.plugin.device import CannotCompile

if TYPE_CHECKING:
    from core.engine.passes import Carry
    from core.engine.step_function import StepFunction
    from core.model.layers import Planes, Weights
    from core.plugin.device import Device

_log = logging.getLogger(__name__)
Shape = tuple[int, ...]


class ReplayedStep(ShapedStep):
    """As `StepFunction`; steps of up to `most` tokens that all draw are replayed.

    num_replayed   parts of steps so far
    """

    def __init__(self, step: StepFunction, device: Device, most: int) -> None:
        super().__init__(step, device)
        self._most = most
        self._inputs: dict[Shape, StepInput] = {}
        self._shape: Shape | None = None  # of the step whose forward was replayed last
        self.report = step.report
        self.num_replayed = 0
        self.refusal = ""

    def forward(
        self, w: Weights, x: StepInput, last_ids: torch.Tensor, kv: list[list[Planes]]
    ) -> tuple[torch.Tensor, torch.Tensor, Carry | None, list[list[Planes]]]:
        found: tuple[torch.Tensor, torch.Tensor, Carry | None, list[list[Planes]]]
        self._shape = None
        if not x.key.all_draw(self._most):
            return self._step.forward(w, x, last_ids, kv)
        shape = x.key.tokens, x.key.blocks
        found = self._run("forward", shape, self._step.forward, (3,), w, self._bare(shape, x), last_ids, kv)
        self._shape = shape if self._made["forward", shape] != self._step.forward else None
        return found

    def _bare(self, shape: Shape, x: StepInput) -> StepInput:
        """Without what is of one step alone; the packer gives the same tensors for a shape each time."""
        bare = self._inputs.get(shape)
        if bare is None or bare.token_ids is not x.token_ids:
            bare = self._inputs[shape] = shapes_alone(x)
        return bare

    def draw(
        self, x: DrawInput, logits_LV: torch.Tensor, last_ids: torch.Tensor, grammar_LW: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        if self._shape is None or not x.greedy or x.extras is not None or grammar_LW is not None:
            return self._step.draw(x, logits_LV, last_ids, grammar_LW)
        found: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
        shape = *self._shape, x.verify is not None
        found = self._run("draw", shape, self._step.draw, (2,), x, logits_LV, last_ids)
        return found

    def _foretell(self, w: Weights, x: StepInput, carry: Carry, *tables: Any) -> Any:
        assert self._step.foretell is not None
        if self._shape is None:
            return self._step.foretell(w, x, carry, *tables)
        bare = self._bare(self._shape, x)
        return self._run("foretell", self._shape, self._step.foretell, (4, 5), w, bare, carry, *tables)

    def _run(self, half: str, shape: Shape, function: Callable[..., Any], given: tuple[int, ...], *args: Any) -> Any:
        made = self._made.get((half, shape))
        if made is not None:
            self.num_replayed += made != function
            return made(*args)
        try:
            made = self._device.compile(function, (half, *shape), given)
            found = made(*args)
        except CannotCompile as error:
            self._made[half, shape] = function
            self.refusal = f"{half}: {error}"
            _log.warning("steps of %d tokens that all draw are not replayed: %s", shape[0], self.refusal)
            return function(*args)
        self._made[half, shape] = made
        return found

    def warm_up(
        self,
        packer: Packer,
        weights: Weights,
        last_ids: torch.Tensor,
        scratch: torch.Tensor,
        kv: list[list[Planes]],
    ) -> tuple[torch.Tensor, torch.Tensor, list[list[Planes]], str]:
        """Replay the smallest step, on padding: last_ids, scratch and kv as they are then, and a note for the plan.

        When the device cannot, nothing is replayed.
        """
        x = packer.padding(packer.replayed_key(ShapeKey(1, 1, 1, 1, True, 1)))
        logits_LV, _, carry, kv = self.forward(weights, x, last_ids, kv)
        _, last_ids, _ = self.draw(x.draws, logits_LV, last_ids)
        if self.foretell:
            _, scratch, kv = self.foretell(weights, x, carry, last_ids, scratch, kv)
        if self.refusal:
            self._most = packer.replayed_tokens = 0
            note = f"steps of few tokens are not replayed, they run kernel by kernel: {self.refusal}"
        else:
            note = (
                f"steps of up to {self._most} tokens that all draw are replayed by the device; others run kernel by "
                "kernel, and so do draws that are not greedy or ask for more"
            )
        return last_ids, scratch, kv, note
