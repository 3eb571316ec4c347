"""The picture of what drafts gain: above, gains over batch sizes; below, how many drafts are right; as SVG."""

from collections.abc import Sequence
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from server.draft_speed.gain import Gain, rates
from server.svg import as_svg


@as_svg("drafts")
def draw(gains: Sequence[Gain]) -> Figure:
    """A column for each kind of prompts, a line for each drafter: measured gains with their spread, dashed what
    the cost model gives; and acceptance by place among the drafts, of all batch sizes together."""
    kinds, drafters = (list(dict.fromkeys(each)) for each in zip(*((g.kind, g.drafter) for g in gains), strict=True))
    sizes = sorted({gain.batch_size for gain in gains})
    size = (2 + 2.5 * len(kinds), 5)
    figure, axes = plt.subplots(2, len(kinds), figsize=size, layout="constrained", squeeze=False, sharey="row")
    for (above, below), kind in zip(axes.T, kinds, strict=True):
        above.set_title(kind, loc="left")
        above.axhline(1, color="0.7", linewidth=0.8)
        for number, drafter in enumerate(drafters):
            row = sorted((g for g in gains if (g.kind, g.drafter) == (kind, drafter)), key=lambda g: g.batch_size)
            _gains(above, row, [sizes.index(gain.batch_size) for gain in row], f"C{number}")
            _acceptance(below, row, f"C{number}", drafter)
        above.set_xticks(range(len(sizes)), [str(num) for num in sizes])
        above.set_xlabel("batch size")
        below.set(xlabel="place among the drafts", xticks=range(1, max(gain.max_drafts for gain in gains) + 1))
    axes[0, 0].set(ylabel="gain (dashed: implied)", ylim=(0, None))
    axes[1, 0].set(ylabel="right, of those after right ones", ylim=(0, 1.05))
    lines = below.get_legend_handles_labels()
    figure.legend(*lines, loc="outside lower center", ncols=min(3, len(drafters)), frameon=False)
    return figure


def _gains(panel: Any, row: Sequence[Gain], places: Sequence[int], colour: str) -> None:
    medians = [gain.measured for gain in row]
    below = [gain.measured - min(gain.ratios) for gain in row]
    above = [max(gain.ratios) - gain.measured for gain in row]
    panel.errorbar(places, medians, yerr=(below, above), color=colour, marker="o", markersize=3, linewidth=1)
    panel.plot(places, [gain.implied for gain in row], color=colour, linestyle="--", linewidth=1)


def _acceptance(panel: Any, row: Sequence[Gain], colour: str, label: str) -> None:
    accepted = [sum(each) for each in zip(*(gain.num_accepted_at for gain in row), strict=True)]
    reached = [sum(each) for each in zip(*(gain.num_reached_at for gain in row), strict=True)]
    known = [(place, rate) for place, rate in enumerate(rates(accepted, reached), 1) if rate is not None]
    panel.plot(*zip(*known, strict=True) if known else ([], []), color=colour, marker=".", label=label)
