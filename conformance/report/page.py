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

_TEMPLATE = Path(__file__).parent / "report.html.jinja"


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
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(_TEMPLATE.read_text())
    ratios = _ratios(outcomes)
    kernels = Picture(
        "How near to the bounds",
        "Each point is a case: its worst check, as part of what is allowed. Right of the line is wrong.",
        figures.headroom(ratios),
    )
    return template.render(
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
