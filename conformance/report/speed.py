"""What the page says of speed: pictures, and a line for each timed case. Cases are numbered alike in all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from conformance.report import figures
from conformance.report.picture import Picture
from conformance.speed.record import Measured, SpeedRecord, Standing

_UNTOLD = ("dtype", "page", "eps", "scheme", "bias", "turned", "first")
"""Parameters that all timed cases of a kernel share."""


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    number: int
    name: str
    measured: Measured
    rho: float | None


@dataclass(frozen=True)
class SpeedPart:
    """Everything that the page's part on speed is made of."""

    record: SpeedRecord
    baseline: SpeedRecord
    standing: Standing
    rows: list[Row]
    pictures: list[Picture]


def part(record: SpeedRecord, baseline: SpeedRecord, standing: Standing) -> SpeedPart:
    rows = [Row(i, _short(m.case), m, standing.rho.get(m.case)) for i, m in enumerate(record.cases, 1)]
    return SpeedPart(record, baseline, standing, rows, list(_pictures(record, baseline, rows)))


def _pictures(record: SpeedRecord, baseline: SpeedRecord, rows: list[Row]) -> Iterator[Picture]:
    points = [
        figures.Point(r.number, r.measured.kind, m.flops / m.moved_bytes, m.flops / m.seconds)
        for r in rows
        if (m := r.measured).flops and not m.trouble
    ]
    yield Picture(
        "roofline",
        "Under the roof",
        "Speed by intensity, of cases that count and compute. The line is what the device was probed to reach in this "
        "run, or most of what it states; numbers are those of the table below.",
        figures.roofline(points, record.limits.flops_per_s, record.limits.bytes_per_s),
    )
    counted = {f"{r.number}  {r.name}": r.rho for r in rows if r.rho is not None}
    if counted:
        yield Picture(
            "rho",
            f"Beside the record of {baseline.device}",
            "rho: the part of its own ceiling that a kernel reaches, over the part that the record's reaches of its.",
            figures.bars(counted, "rho"),
        )


def _short(case: str) -> str:
    """A case's name without what all of them share; 1x1x1x1 becomes 4 of 1."""
    row, family, params = case.split("/", 2)
    told = [p.partition("=") for p in params.split(",")]
    named = [row] if family == "normal" else [row, family]
    return " ".join([*named, *(f"{key}={_count(value)}" for key, _, value in told if key not in _UNTOLD)])


def _count(value: str) -> str:
    runs = [(n, len(list(same))) for n, same in groupby(value.split("x"))]
    return "x".join(n for n, _ in runs) if all(times == 1 for _, times in runs) else f"{runs[0][1]}·{runs[0][0]}"
