"""Makes `report.html` of a run's outcomes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import msgspec

from conformance.certificate.records import Declared, Outcome, Predicate
from conformance.certificate.sections import Extra
from conformance.onnx_cases.fates import FATES, OnnxRecord, reasons
from conformance.report import figures, speed
from conformance.report.picture import Picture
from conformance.speed.record import SpeedRecord, Standing

_HERE = Path(__file__).parent

Divergences = Mapping[str, tuple[Sequence[float], Sequence[float]]]
"""Model and dtype -> KL of the device at every position, and of our own engine."""


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
    predicate: Predicate,
    declared: Sequence[Declared],
    outcomes: Sequence[Outcome],
    extra: Extra | None,
    kls: Divergences,
) -> str:
    """The page. `extra`: of level "full"; `kls`: of engine cases, if there are any."""
    return _template("report.html.jinja").render(
        p=predicate,
        json=msgspec.json.format(msgspec.json.encode(predicate)).decode(),
        pictures=list(_pictures(outcomes, kls)),
        kernels=list(_kernels(declared, outcomes)),
        failures=[o for o in outcomes if o.status in ("fail", "error")],
        waived=[o for o in outcomes if o.status == "waived"],
        reasons=Counter(d.unsupported for d in declared if d.unsupported).most_common(),
        speed=speed.part(extra.speed, extra.beside, extra.standing) if extra else None,
        **(_onnx(extra.onnx) if extra else {"onnx": None}),
    )


def _pictures(outcomes: Iterable[Outcome], kls: Divergences) -> Iterator[Picture]:
    yield Picture(
        "headroom",
        "How near to the bounds",
        "Each point is a case: its worst check, as part of what is allowed. Right of the line is wrong.",
        figures.headroom(_ratios(outcomes)),
    )
    if kls:
        yield Picture(
            "divergence",
            "Whole engines beside float32",
            "Distributions after every token of known texts. The line is what our own engine on the CPU loses in the "
            "same dtype: a device that is right lies about there, or to the left.",
            figures.divergence(kls),
        )


def _onnx(record: OnnxRecord) -> dict[str, Any]:
    """What the part about ONNX's cases needs."""
    operators = dict.fromkeys(case.operator for case in record.cases)
    return {
        "onnx": record,
        "fates": FATES,
        "operators": [(o, Counter(c.fate for c in record.cases if c.operator == o)) for o in operators],
        "why": [(f, *why) for f in ("reference", "refused", "waived", "left out") for why in reasons(record.having(f))],
    }


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
    """The page of how fast a device is, alone."""
    return _template("speed.html.jinja").render(speed=speed.part(record, baseline, standing))


def _template(name: str) -> jinja2.Template:
    loader = jinja2.FileSystemLoader(_HERE)
    return jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    ).get_template(name)
