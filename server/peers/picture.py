"""The picture of a comparison: a panel for each case, a bar for each runner, as SVG."""

from collections.abc import Sequence
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from server.measure import Result
from server.svg import as_svg

CORE, OTHER, BOUND = "#2563eb", "#a8a29e", "#57534e"


@as_svg("peers")
def draw(results: Sequence[Sequence[Result]], bounds: Sequence[float]) -> Figure:
    """Medians as bars from zero, with the spread as a line on each, and the bound as a mark where it is in reach."""
    names = [result.runner for result in results[0]]
    height = len(results) * (0.6 + 0.22 * len(names))
    figure, axes = plt.subplots(len(results), 1, figsize=(7, height), layout="constrained", squeeze=False)
    for panel, row, bound in zip(axes[:, 0], results, bounds, strict=True):
        _panel(panel, row, bound)
    axes[-1, 0].set_xlabel("tokens per second; a line is the spread of the rounds, dashed what no engine can pass")
    return figure


def _panel(panel: Any, row: Sequence[Result], bound: float) -> None:
    medians = [result.median for result in row]
    below = [result.median - result.spread[0] for result in row]
    above = [result.spread[1] - result.median for result in row]
    colours = [CORE] + [OTHER] * (len(row) - 1)
    panel.barh(range(len(row)), medians, xerr=(below, above), color=colours, height=0.7, error_kw={"linewidth": 0.8})
    panel.set_yticks(range(len(row)), [result.runner for result in row])
    panel.invert_yaxis()
    panel.set_title(row[0].case.title, loc="left")
    for place, median in enumerate(medians):
        panel.annotate(f"{median:,.0f}", (0, place), xytext=(3, 0), textcoords="offset points", va="center", color="w")
    panel.axvline(bound, color=BOUND, linestyle="--", linewidth=0.8)
