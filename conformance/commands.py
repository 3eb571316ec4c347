"""`core certify`, `core verify` and `core mutants`. Exit codes: 0 yes, 1 no, 2 could not be done."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from conformance.certificate.records import Outcome
    from conformance.certify import Examined

out, log = Console(), Console(stderr=True)
MODES = ("test", "support", "perf")
LEVELS = ("kernel", "engine", "full")
NOT_CERTIFIED = 1


def register(app: typer.Typer) -> None:
    """Adds the commands of this package to `core`."""
    from conformance.onnx_cases.command import onnx

    app.command("certify")(certify)
    app.command("verify")(verify)
    app.command("mutants")(mutants)
    app.command("onnx")(onnx)


def certify(
    device: Annotated[str, typer.Option(help="Device plugin to examine.")],
    *,
    mode: Annotated[str, typer.Option(help="test; support: only show what would be run; perf: how fast.")] = "test",
    quick: Annotated[bool, typer.Option("--quick", help="One case of each kind, in a minute.")] = False,
    level: Annotated[
        str, typer.Option(help="kernel; engine: whole engines, too; full: and ONNX, and speed.")
    ] = "kernel",
    bisect: Annotated[
        bool, typer.Option("--bisect", help="Only find the first kernel that departs from ours.")
    ] = False,
    model: Annotated[str, typer.Option(help="For --bisect: induction or smollm2.")] = "induction",
    only: Annotated[str, typer.Option(metavar="PATTERN", help="Cases such as 'linear/*'; makes no certificate.")] = "*",
    jobs: Annotated[int, typer.Option(help="Processes. Default: 1 on an accelerator, else one per processor.")] = 0,
    bundle: Annotated[Path, typer.Option("--out", help="Folder for the bundle; an unfinished run is resumed.")] = Path(
        "certificate"
    ),
    nonce: Annotated[str, typer.Option(help="From whoever will check the bundle. Default: random.")] = "",
    waivers: Annotated[Path | None, typer.Option(help="Known failures, with owner, issue and expiry.")] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="A record to compare speed with. Default: the one that ships.")
    ] = None,
    sign: Annotated[list[Path], typer.Option("--sign", help="Ed25519 private key (PEM); repeatable.")] = [],  # noqa: B006
) -> int:
    """Examine a device, and write the certificate."""
    from conformance.certificate.sign import check_available
    from conformance.certify import Order
    from conformance.certify import certify as run
    from conformance.speed.record import DEFAULT

    if mode not in MODES:
        raise typer.BadParameter(f"{mode!r} is not one of {', '.join(MODES)}", param_hint="--mode")
    if jobs < 0:
        raise typer.BadParameter(f"{jobs} is less than 0: give the number of processes", param_hint="--jobs")
    if level not in LEVELS:
        raise typer.BadParameter(f"{level!r} is not one of {', '.join(LEVELS)}", param_hint="--level")
    if bisect:
        return _bisect(device, model)
    level = "quick" if quick else level
    if baseline and mode != "perf" and level != "full":
        raise typer.BadParameter("nothing is timed: give --mode perf or --level full", param_hint="--baseline")
    if mode == "support":
        return _support(device, level, only)
    if mode == "perf":
        return _perf(device, bundle, baseline)
    if sign:
        check_available()
    with _bar("examining") as progress:
        done = run(Order(device, bundle, level, only, jobs, nonce, waivers, baseline or DEFAULT, sign), progress)
    return _told(done, bundle)


def _told(done: "Examined", bundle: Path) -> int:
    """Show what came of it, and keep the certificate where `core plan` finds it. Returns the exit code."""
    from conformance.certificate.issue import CERTIFICATE
    from core.plugin.certificate import keep

    predicate, outcomes = done.predicate, done.outcomes
    statuses = Counter(outcome.status for outcome in outcomes)
    _show("Cases", ("kernel", "provider", "pass", "fail", "waived", "closest to a bound"), _by_row(outcomes))
    for outcome in [o for o in outcomes if o.status in ("fail", "error")][:20]:
        log.print(Text(f"{outcome.status}  {outcome.case} ({outcome.provider}): {outcome.message}"))
    bad = statuses["fail"] + statuses["error"]
    unsupported = sum(1 for d in done.declared if d.unsupported)
    out.print(f"{statuses['pass']} passed, {bad} failed, {statuses['waived']} waived, {unsupported} not supported")
    bad += _show_extra(done)
    if predicate is None:
        out.print("a part of the cases: no certificate")
        return NOT_CERTIFIED if bad else 0
    if predicate.mutation is None:
        out.print("the checks changed since they were tried on wrong kernels: run `core mutants --record`")
    kept = keep(predicate.device.name, predicate.level, (bundle / CERTIFICATE).read_bytes())
    out.print(f"{predicate.result}, tier {predicate.tier}, level {predicate.level}: {bundle}")
    out.print(f"`core plan` shows it from {kept}")
    return 0 if predicate.result == "PASSED" else NOT_CERTIFIED


def _show_extra(done: "Examined") -> int:
    """What level "full" has beyond its cases. Returns how many of ONNX's cases fail."""
    if done.onnx is None:
        return 0
    from conformance.onnx_cases import tables as of_onnx
    from conformance.speed import tables as of_speed

    of_onnx.show(out, done.onnx, done.device)
    if done.extra:
        of_speed.show(out, done.extra.speed, done.extra.beside, done.extra.standing)
    return done.onnx.counts["failed"]


def _support(device: str, level: str, only: str) -> int:
    from conformance.declare import declare
    from conformance.target import open_target

    found = list(declare(open_target(device), level, only))
    for one in found:
        out.print(
            Text(f"{one.provider:12} {one.case}" + (f"  not supported: {one.unsupported}" if one.unsupported else ""))
        )
    out.print(f"{sum(not one.unsupported for one in found)} of {len(found)} are supported")
    if level == "full":
        out.print("ONNX's cases, which `core onnx` shows, and those that are timed come on top")
    return 0


def _perf(device: str, folder: Path, baseline: Path | None) -> int:
    from conformance.report.page import render_speed
    from conformance.speed import record as kept
    from conformance.speed.apart import record_apart
    from conformance.speed.tables import show

    beside = kept.read(baseline or kept.DEFAULT)
    with _bar("timing") as progress:
        made = record_apart(device, progress)
    kept.write(folder / "speed.json", made)
    standing = kept.compare(made, beside)
    (folder / "speed.html").write_text(render_speed(made, beside, standing))
    show(out, made, beside, standing)
    out.print(f"written: {folder}")
    return NOT_CERTIFIED if made.wrong else 0


def _bisect(device: str, model: str) -> int:
    from conformance.engine.bisect import bisect as run
    from conformance.engine.texts import INDUCTION, SMOLLM2, missing
    from conformance.target import open_target

    if model not in (INDUCTION, SMOLLM2):
        raise typer.BadParameter(f"{model!r} is not one of {INDUCTION}, {SMOLLM2}", param_hint="--model")
    if why := missing(model):
        raise typer.BadParameter(why, param_hint="--model")
    for dtype in open_target(device).facts.dtypes:
        departure = run(device, model, dtype)
        if departure:
            out.print(Text(str(departure)), soft_wrap=True)
            return NOT_CERTIFIED
    out.print("no departure")
    return 0


def _by_row(outcomes: Iterable["Outcome"]) -> Iterator[tuple[object, ...]]:
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.row, outcome.bound_by or outcome.provider), []).append(outcome)
    for (row, provider), some in groups.items():
        status = Counter(o.status for o in some)
        worst = max((f for o in some for f in o.findings), key=lambda f: f[2], default=None)
        closest = f"{worst[2]:.2f} ({worst[0]})" if worst and worst[2] > 0 else "exact"
        yield row, provider, status["pass"], status["fail"] + status["error"], status["waived"], closest


def verify(
    bundle: Annotated[Path, typer.Argument(help="Folder of a certificate.")],
    *,
    level: Annotated[int, typer.Option(min=0, max=2, help="0: consistent; 1: signed; 2: outputs judged again.")] = 0,
    key: Annotated[list[Path], typer.Option(help="Ed25519 public key (PEM) that you trust; repeatable.")] = [],  # noqa: B006
    threshold: Annotated[int, typer.Option(min=1, help="How many of the keys must have signed.")] = 1,
    nonce: Annotated[str, typer.Option(help="The nonce that you gave to whoever made it.")] = "",
) -> int:
    """Check a certificate's word, without the device."""
    from conformance.certificate import verify as check

    read = check.read(bundle)
    found = check.complaints(read, level, key, threshold, nonce)
    for complaint in found[:20]:
        out.print(Text(complaint))
    if found:
        out.print(f"not verified: {len(found)} complaints")
        return NOT_CERTIFIED
    p = read.predicate
    if level == 2 and not key:
        out.print("signatures were not checked: no --key was given")
    out.print(f"verified at level {level}: {p.device.name} {p.result}, tier {p.tier}, {p.counts.passed} cases passed")
    if p.onnx and p.speed:
        other = "" if p.speed.ships else ", a record that does not ship with the suite"
        out.print(f"{p.onnx.device} cases of ONNX are right by its own kernels, {p.onnx.reference} by references")
        out.print(Text(f"speed: grade {p.speed.grade}, beside {p.speed.baseline}{other}"))
    return 0


def mutants(
    only: Annotated[str, typer.Option(metavar="PATTERN", help="Such as 'linear/*'.")] = "*",
    every_case: Annotated[
        bool, typer.Option("--every-case", help="Let right kernels face every case, not one of each kind; an hour.")
    ] = False,
    record: Annotated[bool, typer.Option("--record", help="Write the score that certificates carry.")] = False,
) -> int:
    """Try the checks on wrong kernels, which they must refuse, and on right ones, which they must not."""
    from conformance.mutants import catalogue
    from conformance.mutants import record as kept
    from conformance.mutants.run import fates

    chosen = [m for m in catalogue() if Path(f"{m.row}/{m.name}").match(only)]
    if record and len(chosen) < len(catalogue()):
        raise typer.BadParameter("a part of the catalogue is no score: leave out --only", param_hint="--record")
    with _bar("trying the checks") as progress:
        found = fates(chosen, "kernel" if every_case else "quick", progress)
    rows = [
        (f.mutant.row, f.mutant.name, f.mutant.kind, _fate(f.killers), f.cases, "" if f.ok else "WRONG") for f in found
    ]
    _show("Catalogue", ("kernel", "name", "kind", "refused by", "cases", ""), rows)
    score = kept.score(found)
    out.print(
        f"{score.killed} of {score.wrong} wrong kernels refused, {score.refused} of {score.right} right ones refused"
    )
    if record:
        kept.write(score)
    return 0 if all(f.ok for f in found) else NOT_CERTIFIED


def _fate(killers: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{check} on {family}" for check, family in killers)


def _show(title: str, columns: tuple[str, ...], rows: Iterable[Sequence[object]]) -> None:
    made = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*(Text(str(cell)) for cell in row))
    out.print(made)


@contextmanager
def _bar(title: str) -> Iterator[Callable[[int, int], None]]:
    with Progress(console=log, transient=True, disable=not log.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
