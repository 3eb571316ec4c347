"""The report's pictures, as SVG to stand inside a page. Each takes plain numbers and says what it shows.

Colours are the page's own, so that pictures follow it into the dark.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, PAPER, GRID, GOOD, BAD = "#2f3b4a", "#fbfcfd", "#d5dbe3", "#2a7f62", "#b3261e"
BLUE, GOLD, PLUM = "#2f6db0", "#b07a12", "#8250a8"
_VARIABLES = {
    INK: "ink", PAPER: "paper", GRID: "line", GOOD: "good", BAD: "bad", BLUE: "blue", GOLD: "gold", PLUM: "plum",
}  # fmt: skip
"""Colour -> the variable of the page that takes its place."""

_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "report",  # the same picture has the same text
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_WIDTH = 6.4
_LEAST_KL, _MOST_KL = 1e-12, 99.0
_CLASS_COLOURS = (GOOD, BLUE, GOLD, PLUM)


@dataclass(frozen=True)
class Point:
    """One timed case under the roof: its number on the page, class, FLOP per byte, and FLOP/s."""

    number: int
    kind: str
    intensity: float
    flops_per_s: float


def headroom(ratios: Mapping[str, Sequence[float]]) -> str:
    """Of each kernel, how near its cases came to their bounds: 1 is the bound. A point is a case's worst check."""
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(_WIDTH, 0.6 + 0.2 * max(1, len(ratios))), layout="constrained")
        for place, values in enumerate(reversed(list(ratios.values()))):
            shown = [min(max(v, 1e-3), 10.0) for v in values]
            colours = [BAD if v > 1 else GOOD for v in values]
            axes.scatter(shown, [place] * len(shown), s=11, c=colours, alpha=0.5, linewidths=0)
        axes.axvline(1, color=BAD, linewidth=1)
        axes.set_xscale("log")
        axes.set_xlim(8e-4, 12)
        axes.set_ylim(-0.7, len(ratios) - 0.3)
        axes.set_yticks(range(len(ratios)), list(reversed(list(ratios))))
        axes.set_xlabel("error / bound (of exact results: at the left)")
        axes.grid(axis="x", color=GRID, linewidth=0.6)
        axes.tick_params(length=0)
        return _svg(figure)


def roofline(points: Sequence[Point], flops_per_s: float, bytes_per_s: float) -> str:
    """Cases by intensity and speed, under what the device reaches at best. Numbers are those of the page's table."""
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(_WIDTH, 3.6), layout="constrained")
        knee = flops_per_s / bytes_per_s
        low = min([knee / 30, *(p.intensity / 2 for p in points)])
        high = max([knee * 30, *(p.intensity * 2 for p in points)])
        axes.plot([low, knee, high], [low * bytes_per_s, flops_per_s, flops_per_s], color=INK, linewidth=1.4)
        kinds = dict.fromkeys(p.kind for p in points)
        for kind, colour in zip(kinds, _CLASS_COLOURS, strict=False):
            some = [p for p in points if p.kind == kind]
            axes.scatter([p.intensity for p in some], [p.flops_per_s for p in some], s=20, color=colour, label=kind)
        for p in points:
            axes.annotate(
                str(p.number), (p.intensity, p.flops_per_s), xytext=(5, 3), textcoords="offset points", fontsize=8
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(low, high)
        axes.set_xlabel("FLOP per byte moved")
        axes.set_ylabel("FLOP/s")
        axes.grid(color=GRID, linewidth=0.6)
        if points:
            axes.legend(frameon=False, loc="lower right")
        return _svg(figure)


def bars(values: Mapping[str, float], label: str, reference: float = 1.0) -> str:
    """One bar for each name, beside a line at `reference`."""
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(_WIDTH, 0.6 + 0.21 * max(1, len(values))), layout="constrained")
        names = list(reversed(list(values)))
        most = max([reference, *values.values()])
        axes.barh(names, [values[name] for name in names], color=GOOD, height=0.66)
        axes.axvline(reference, color=INK, linewidth=1)
        for place, name in enumerate(names):
            inside = values[name] > most / 5
            side, colour = ("right", PAPER) if inside else ("left", INK)
            at = values[name], place
            axes.annotate(f" {values[name]:.2f} ", at, ha=side, va="center_baseline", color=colour, fontsize=8)
        axes.set_xlim(0, 1.05 * most)
        axes.set_xlabel(label)
        axes.tick_params(length=0)
        return _svg(figure)


def divergence(panels: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> str:
    """Of each model and dtype, KL at every position: of the device, filled, and our own noise, as a line."""
    with plt.rc_context(_STYLE):
        columns = min(2, len(panels))
        rows = -(-len(panels) // columns)
        figure, grid = plt.subplots(
            rows, columns, figsize=(_WIDTH, 0.5 + 1.35 * rows), layout="constrained", sharex=True, squeeze=False
        )
        flat = list(grid.flat)
        for axes, (name, (device, noise)) in zip(flat, panels.items(), strict=False):
            _panel(axes, name, device, noise)
        for axes in flat[len(panels) :]:
            axes.set_visible(False)
        flat[0].legend(frameon=False, fontsize=8, loc="upper right")
        figure.supxlabel("KL from float32 on the CPU, nats (0: at the left)", fontsize=9)
        figure.supylabel("part of positions", fontsize=9)
        return _svg(figure)


def _panel(axes: Axes, name: str, device: Sequence[float], noise: Sequence[float]) -> None:
    edges = [10 ** (e / 4) for e in range(-48, 9)]
    filled: Any = {"histtype": "stepfilled", "color": GOOD, "alpha": 0.55, "label": "device"}
    line: Any = {"histtype": "step", "color": INK, "linewidth": 1.2, "label": "our own noise"}
    for numbers, style in ((device, filled), (noise, line)):
        shown = [min(max(n, _LEAST_KL), _MOST_KL) for n in numbers]
        axes.hist(shown, bins=edges, weights=[1 / len(shown)] * len(shown), **style)
    axes.set_xscale("log")
    axes.set_xticks([1e-12, 1e-9, 1e-6, 1e-3, 1])
    axes.set_title(name, fontsize=9, loc="left")
    axes.grid(color=GRID, linewidth=0.6)


def _svg(figure: Figure) -> str:
    """The figure's element, without what stands before it in a file of its own."""
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    plt.close(figure)
    text = out.getvalue()
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var(--{variable})")
    return text[text.index("<svg") :]
