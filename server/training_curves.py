"""The picture of a training of draft heads: loss and acceptance of each layer, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from server.svg import as_svg

if TYPE_CHECKING:
    from core.speculate.checkpoint import History

_SMOOTH = 20  # steps that a point of the loss is the mean of


@as_svg("training")
def draw(history: History) -> Figure:
    """Two panels over the steps: loss in training, and the part of held-out positions where a layer agrees with the
    model, given that all layers before it do."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for k in range(len(history.losses[0])):
        left.plot(_smooth([losses[k] for losses in history.losses]), label=f"layer {k + 1}")
        steps = [judged.step for judged in history.judged]
        right.plot(steps, [judged.per_position[k] for judged in history.judged], marker=".", label=f"layer {k + 1}")
    left.set(xlabel="step", ylabel="loss (nats)", yscale="log")
    right.set(xlabel="step", ylabel="agreement", ylim=(0, 1))
    right.legend(frameon=False)
    return figure


def _smooth(values: Sequence[float]) -> list[float]:
    """The mean of each value and those shortly before it."""
    means = []
    for i in range(len(values)):
        part = values[max(0, i + 1 - _SMOOTH) : i + 1]
        means.append(sum(part) / len(part))
    return means
