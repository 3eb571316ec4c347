"""What steps that are compiled or replayed share: each part of a step is made by the device for one shape, and kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from core.engine.step_input import StepInput

if TYPE_CHECKING:
    from core.engine.passes import Carry
    from core.engine.step_function import StepFunction
    from core.model.layers import Weights
    from core.plugin.device import Device


class ShapedStep(ABC):
    """As `StepFunction`, by parts that the device made."""

    def __init__(self, step: StepFunction, device: Device) -> None:
        self._step, self._device = step, device
        self._made: dict[tuple[Any, ...], Callable[..., Any]] = {}

    @property
    def num_made(self) -> int:
        """Parts of steps so far, each for a shape of its own."""
        return len(self._made)

    @property
    def foretell(self) -> Callable[..., Any] | None:
        """As `StepFunction.foretell`."""
        return self._foretell if self._step.foretell else None

    @abstractmethod
    def _foretell(self, w: Weights, x: StepInput, carry: Carry, *tables: Any) -> Any:
        """See `core.engine.foretell.Foretell`."""


def shapes_alone(x: StepInput) -> StepInput:
    """Without what is of one step alone."""
    return replace(x, host=None, extras=None)
