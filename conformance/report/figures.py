"""The report's pictures, as SVG to stand inside a page. Each takes plain numbers and says what it shows."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

INK, GOOD, BAD, GRID = "#2f3b4a", "#2a7f62", "#b3261e", "#d5dbe3"
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "report",  # the same picture has the same text
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def headroom(ratios: Mapping[str, Sequence[float]]) -> str:
    """Of each kernel, how near its cases came to their bounds: 1 is the bound. A point is a case's worst check."""
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(8.5, 0.6 + 0.3 * max(1, len(ratios))), layout="constrained")
        for place, values in enumerate(reversed(list(ratios.values()))):
            shown = [min(max(v, 1e-3), 10.0) for v in values]
            colours = [BAD if v > 1 else GOOD for v in values]
            axes.scatter(shown, [place] * len(shown), s=14, c=colours, alpha=0.45, linewidths=0)
        axes.axvline(1, color=BAD, linewidth=1)
        axes.set_xscale("log")
        axes.set_xlim(8e-4, 12)
        axes.set_yticks(range(len(ratios)), list(reversed(list(ratios))))
        axes.set_xlabel("error / bound (of exact results: at the left)")
        axes.grid(axis="x", color=GRID, linewidth=0.6)
        axes.tick_params(length=0)
        return _svg(figure)


def roofline(points: Mapping[str, tuple[float, float]], flops_per_s: float, bytes_per_s: float) -> str:
    """Kernels by intensity (FLOP per byte) and speed (FLOP/s), under what the machine was measured to reach."""
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(8.5, 4.2), layout="constrained")
        knee = flops_per_s / bytes_per_s
        low = min([knee / 100, *(x / 2 for x, _ in points.values())])
        high = max([knee * 100, *(x * 2 for x, _ in points.values())])
        axes.plot([low, knee, high], [low * bytes_per_s, flops_per_s, flops_per_s], color=INK, linewidth=1.2)
        for name, (intensity, speed) in points.items():
            axes.scatter([intensity], [speed], s=22, color=GOOD)
            axes.annotate(name, (intensity, speed), xytext=(4, 4), textcoords="offset points", fontsize=8)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("FLOP per byte moved")
        axes.set_ylabel("FLOP/s")
        axes.grid(color=GRID, linewidth=0.6)
        return _svg(figure)


def bars(values: Mapping[str, float], label: str, reference: float = 1.0) -> str:
    """One bar for each name, beside a line at `reference`."""
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(8.5, 0.6 + 0.3 * max(1, len(values))), layout="constrained")
        names = list(reversed(list(values)))
        axes.barh(names, [values[name] for name in names], color=GOOD, height=0.6)
        axes.axvline(reference, color=INK, linewidth=1)
        for place, name in enumerate(names):
            axes.annotate(f" {values[name]:.2f}", (values[name], place), va="center", fontsize=8)
        axes.set_xlabel(label)
        axes.tick_params(length=0)
        return _svg(figure)


def histogram(values: Mapping[str, Sequence[float]], label: str) -> str:
    """Distributions on a logarithmic axis, one outline for each name."""
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(8.5, 3.2), layout="constrained")
        edges = [10 ** (e / 4) for e in range(-48, 9)]
        for name, numbers in values.items():
            axes.hist(
                [min(max(n, 1e-12), 99.0) for n in numbers], bins=edges, histtype="step", linewidth=1.4, label=name
            )
        axes.set_xscale("log")
        axes.set_xlabel(label)
        axes.set_ylabel("positions")
        axes.legend(frameon=False, fontsize=8)
        axes.grid(color=GRID, linewidth=0.6)
        return _svg(figure)


def _svg(figure: Figure) -> str:
    """The figure's element, without what stands before it in a file of its own."""
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    plt.close(figure)
    text = out.getvalue()
    return text[text.index("<svg") :]
