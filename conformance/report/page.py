"""Makes `report.html` of a run's outcomes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
import msgspec

from conformance.certificate.records import Declared, Outcome, Predicate
from conformance.report import figures
from conformance.speed.record import SpeedRecord, Standing

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Picture:
    """A figure with its heading and a line that says how to read it."""

    title: str
    note: str
    svg: str


@dataclass(frozen=True)
class KernelRow:
    """A line of the table of kernels. `closest` is the greatest ratio to a bound."""

    row: str
    provider: str
    passed: int
    failed: int
    waived: int
    unsupported: int
    closest: str


def render(
    predicate: Predicate, declared: Sequence[Declared], outcomes: Sequence[Outcome], more: Sequence[Picture]
) -> str:
    """The page. `more` are pictures of levels beyond the kernels'."""
    ratios = _ratios(outcomes)
    kernels = Picture(
        "How near to the bounds",
        "Each point is a case: its worst check, as part of what is allowed. Right of the line is wrong.",
        figures.headroom(ratios),
    )
    return _template("report.html.jinja").render(
        p=predicate,
        json=msgspec.json.format(msgspec.json.encode(predicate)).decode(),
        pictures=[kernels, *more],
        kernels=list(_kernels(declared, outcomes)),
        failures=[o for o in outcomes if o.status in ("fail", "error")],
        waived=[o for o in outcomes if o.status == "waived"],
        reasons=Counter(d.unsupported for d in declared if d.unsupported).most_common(),
    )


def _ratios(outcomes: Iterable[Outcome]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        found[outcome.row].append(max((finding[2] for finding in outcome.findings), default=0.0))
    return found


def _kernels(declared: Iterable[Declared], outcomes: Sequence[Outcome]) -> Iterable[KernelRow]:
    unsupported = Counter((d.row, d.provider) for d in declared if d.unsupported)
    groups: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.row, outcome.provider].append(outcome)
    for key in dict.fromkeys([*groups, *unsupported]):
        some = groups.get(key, [])
        status = Counter(o.status for o in some)
        worst = max((finding for o in some for finding in o.findings), key=lambda f: f[2], default=None)
        closest = f"{worst[2]:.2f} ({worst[0]})" if worst and worst[2] > 0 else "exact"
        failed = status["fail"] + status["error"]
        bound = some[0].bound_by if some else ""
        shown = key[1] if bound in ("", key[1]) else f"{key[1]}, by {bound}"
        yield KernelRow(key[0], shown, status["pass"], failed, status["waived"], unsupported[key], closest)


def render_speed(record: SpeedRecord, baseline: SpeedRecord, standing: Standing) -> str:
    """The page of how fast a device is."""
    points = {m.case: (m.flops / m.moved_bytes, m.flops / m.seconds) for m in record.cases if m.flops and not m.trouble}
    pictures = [
        Picture(
            "Under the roof",
            "Speed by intensity. The line is what this device was measured to reach in this run.",
            figures.roofline({_short(name): at for name, at in points.items()}, record.flops_per_s, record.bytes_per_s),
        ),
        Picture(
            f"Beside {baseline.device}",
            "rho: the part of its own ceiling that a kernel reaches, over the part that the baseline's reaches of its.",
            figures.bars({_short(name): rho for name, rho in standing.rho.items()}, "rho"),
        ),
    ]
    return _template("speed.html.jinja").render(record=record, baseline=baseline, standing=standing, pictures=pictures)


def _short(case: str) -> str:
    """A case's name without what all of them share."""
    row, _, params = case.split("/", 2)
    return f"{row} " + ",".join(
        p for p in params.split(",") if not p.startswith(("dtype=", "page=", "eps=", "scheme="))
    )


def _template(name: str) -> jinja2.Template:
    loader = jinja2.FileSystemLoader(_HERE)
    return jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    ).get_template(name)
