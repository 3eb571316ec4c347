"""What a comparison says: as a table on the screen, as Markdown, for programs, and as a picture."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from server.measure import Result
from server.peers.idle import ALLOWED_SHARE
from server.show import markdown, table

if TYPE_CHECKING:
    from server.compare import Comparison
    from server.peers.limits import Limits

TITLE = "Tokens per second: median (spread)"
RESULTS, TABLE, PICTURE = "speed.json", "speed.md", "speed.svg"
UNITS = {"read": "GB/s read"}


def listed(results: Sequence[Sequence[Result]]) -> list[dict[str, Any]]:
    """For programs: an entry for each case and runner."""
    return [
        {"case": r.case.title, "runner": r.runner, "tokens_per_s": r.tokens_per_s, "median": r.median}
        for row in results
        for r in row
    ]


def rates(results: Sequence[Sequence[Result]], bounds: Sequence[float] | None = None) -> Table:
    """For the screen. `bounds`: what no engine can pass, for each case."""
    columns, rows = cells(results, bounds)
    return table(TITLE, columns, rows)


def cells(results: Sequence[Sequence[Result]], bounds: Sequence[float] | None) -> tuple[list[str], list[list[str]]]:
    """Columns, and a row for each case: every runner's rate, core's beside the best peer's, and beside the bound."""
    names = [result.runner for result in results[0]]
    columns = ["case", *names]
    rows = [[row[0].case.title, *map(_rate, row)] for row in results]
    if len(names) > 1:
        columns.append("core / peer" if len(names) == 2 else "core / best peer")
        for cell, (core, *others) in zip(rows, results, strict=True):
            cell.append(f"{core.median / max(other.median for other in others):.2f}")
    if bounds is not None:
        columns += ["bound", "core / bound"]
        for cell, (core, *_), most in zip(rows, results, bounds, strict=True):
            cell += [f"{most:,.0f}", f"{core.median / most:.2f}"]
    return columns, rows


def _rate(result: Result) -> str:
    least, most = result.spread
    return f"{result.median:,.1f} ({least:,.1f} to {most:,.1f})"


@dataclass(frozen=True)
class Report:
    """A run of `core bench peers`.

    weights       the dtype that all have them in, or "packed": as they are stored
    threads       of each engine
    environment   variables that steer threads and memory; peers do not get GOMP_SPINCOUNT
    limits        of the machine, measured before and after
    bounds        tokens per second that no engine can pass, for each case
    """

    model: str
    weights: str
    threads: int
    environment: dict[str, str]
    limits: "Limits"
    bounds: list[float]
    comparison: "Comparison"

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "model": self.model,
            "weights": self.weights,
            "processor": self.comparison.arch,
            "threads": self.threads,
            "environment": self.environment,
            "limits_1e9_per_s": self.limits,
            "bounds_tokens_per_s": self.bounds,
            "runners": [
                {"name": runner.name, "versions": runner.versions, "idle_share": runner.idle_share}
                for runner in self.comparison.runners
            ],
            "results": listed(self.comparison.results),
        }

    def table(self) -> Table:
        return rates(self.comparison.results, self.bounds)

    def notes(self) -> list[str]:
        """What the table rests on, and who was not idle while others were measured."""
        runners = self.comparison.runners
        lines = [f"{self.model}, weights {self.weights}, {self.threads} threads each, on {self.comparison.arch}"]
        lines += [f"machine: {_limit(name, values)}" for name, values in self.limits.items()]
        lines += [f"{runner.name}: {runner.versions}" for runner in runners]
        lines += [
            f"{runner.name} was not idle: it used {runner.idle_share:.0%} of a processor while others were measured"
            for runner in runners
            if runner.idle_share > ALLOWED_SHARE
        ]
        if any(r.median > most for row, most in zip(self.comparison.results, self.bounds, strict=True) for r in row):
            lines.append("the machine was busier when its limits were measured than in the rounds: bounds are too low")
        return lines

    def markdown(self) -> str:
        columns, rows = cells(self.comparison.results, self.bounds)
        notes = "\n".join(f"- {line}" for line in self.notes())
        return f"{TITLE}.\n\n{markdown(columns, rows)}\n\n{notes}\n"

    def write(self, folder: Path) -> None:
        """Results, table and picture."""
        from server.peers.picture import draw

        (folder / RESULTS).write_text(json.dumps(self.as_json(), indent=2) + "\n")
        (folder / TABLE).write_text(self.markdown())
        (folder / PICTURE).write_text(draw(self.comparison.results, self.bounds))


def _limit(name: str, values: Sequence[float]) -> str:
    what = UNITS.get(name, f"Gop/s {name} matrix products")
    return f"{statistics.median(values):,.1f} {what} ({min(values):,.1f} to {max(values):,.1f})"
