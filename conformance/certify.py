"""One examination of a device from start to bundle: declare, run, judge, write.

Level "full" goes on after the cases: ONNX's cases are run as the others are, and then kernels are timed. A run that was
cut off goes on with the case where it was, of either kind. Timing is one measurement, and done anew.
"""

from __future__ import annotations

import datetime
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from conformance import identity
from conformance.case import Result
from conformance.certificate import issue, waivers
from conformance.certificate.records import Declared, Outcome, Predicate, decode_lines, encode_lines
from conformance.certificate.sections import LEVEL as FULL
from conformance.certificate.sections import Extra
from conformance.certificate.sign import private_key
from conformance.certificate.waivers import Waiver
from conformance.child import Setting, Task
from conformance.declare import declare
from conformance.mutants import record
from conformance.onnx_cases import fates
from conformance.onnx_cases.load import load
from conformance.run import run
from conformance.speed import record as kept
from conformance.speed.apart import record_apart
from conformance.target import Target, open_target
from core.errors import ConfigError

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Order:
    """What is asked for.

    only     pattern of case names; a part of the cases makes no certificate
    jobs     processes; 0: one on an accelerator, else one per processor
    nonce    from whoever will check; empty: a random one
    baseline record of speed to compare with, of level "full"
    folder   for the bundle; one with an unfinished run in it is resumed
    """

    device: str
    folder: Path
    level: str = "kernel"
    only: str = "*"
    jobs: int = 0
    nonce: str = ""
    waivers: Path | None = None
    baseline: Path = kept.DEFAULT
    keys: list[Path] = field(default_factory=list)


@dataclass(frozen=True)
class Header:
    """The first line of an unfinished run: what makes it the same run."""

    device: str
    level: str
    only: str
    nonce: str
    suite: str
    plugin: str


@dataclass(frozen=True)
class Examined:
    """What came of it.

    predicate   None when only a part was run, and no certificate was written
    outcomes    of cases of kernels and whole engines; `onnx`: of ONNX's, of level "full"
    extra       what else a certificate of level "full" has
    """

    device: str
    predicate: Predicate | None
    declared: list[Declared]
    outcomes: list[Outcome]
    onnx: fates.OnnxRecord | None
    extra: Extra | None


def certify(order: Order, progress: Progress) -> Examined:
    """Run what is asked for, and write the certificate.

    Raises: ConfigError, PluginError and DeviceError when it cannot be run.
    """
    started, target = _now(), open_target(order.device)
    name, full = target.facts.name, order.level == FULL
    plugin, suite = identity.plugin(name), issue.suite_record()
    allowed = waivers.read_file(order.waivers)
    baseline = _baseline(order.baseline) if full else b""
    operators = _operators(order.only) if full else {}
    declared = list(declare(target, order.level, order.only))
    if not declared and not operators:
        raise ConfigError(f"--only {order.only!r} matches no case: `core certify --mode support` lists them")
    for path in order.keys:
        private_key(path)  # now, and not when hours are spent
    order.folder.mkdir(parents=True, exist_ok=True)
    (order.folder / issue.SAMPLES).mkdir(exist_ok=True)
    header, outcomes = _resume(order, suite.tree_sha256, plugin.digest)
    tasks = [d.task for d in declared if not d.unsupported]
    tasks += [Task(fates.ROW, title, name) for title in fates.titles(operators)]
    root = identity.root_seed(suite.tree_sha256, plugin.digest, header.nonce)
    _run(order, target, root, tasks, outcomes, progress)
    timed = record_apart(name, progress) if full and order.only == "*" else None
    finished = _now()
    outcomes = _counted(tasks, outcomes, allowed, name, finished)
    results = {fates.name_of(o.case): o.result for o in outcomes if o.row == fates.ROW}
    outcomes = [o for o in outcomes if o.row != fates.ROW]
    onnx = fates.record(operators, results) if full else None
    if order.only != "*":
        return Examined(name, None, declared, outcomes, onnx, None)
    extra = Extra(onnx, timed, baseline) if onnx and timed else None
    made = issue.Run(
        order.level, plugin, issue.device_record(target), header.nonce, declared, outcomes, allowed,
        record.read(), started, finished, extra,
    )  # fmt: skip
    predicate = issue.write(order.folder, made, order.keys)
    (order.folder / issue.UNFINISHED).unlink()
    return Examined(name, predicate, declared, outcomes, onnx, extra)


def _baseline(path: Path) -> bytes:
    """A record, known to be one before anything runs."""
    held = kept.data(path)
    kept.decode(held, str(path))
    return held


def _operators(only: str) -> dict[str, str]:
    """Name -> operator of ONNX's cases."""
    found = {name: case.operator for name, case in load().items()}
    fates.check(found)
    return {name: operator for name, operator in found.items() if fnmatchcase(fates.title_of(operator, name), only)}


def _run(
    order: Order, target: Target, root: bytes, tasks: Sequence[Task], outcomes: list[Outcome], progress: Progress
) -> None:
    """Run the tasks that have no outcome yet, and add theirs, here and in the file that a run is resumed from."""
    done = {outcome.task for outcome in outcomes}
    todo = [task for task in tasks if task not in done]
    jobs = order.jobs or (1 if target.facts.accelerator else os.cpu_count() or 1)
    threads = max(1, (os.cpu_count() or 1) // jobs) if jobs > 1 else 0
    with (order.folder / issue.UNFINISHED).open("ab") as log:

        def take(task: Task, result: Result, sample: str) -> None:
            outcome = Outcome.of(task, result, sample)
            outcomes.append(outcome)
            log.write(encode_lines([outcome]))
            log.flush()
            progress(len(outcomes), len(tasks))

        progress(len(outcomes), len(tasks))
        setting = Setting(target.facts.name, root, threads, order.folder / issue.SAMPLES)
        run(todo, setting, take, jobs)


def _counted(
    tasks: Sequence[Task], outcomes: list[Outcome], allowed: tuple[Waiver, ...], device: str, finished: str
) -> list[Outcome]:
    """Outcomes in the order of the tasks, as they count with what is waived on the day that the run ends."""
    today, found = waivers.day_of(finished), {outcome.task: outcome for outcome in outcomes}
    counted = []
    for outcome in (found[task] for task in tasks):
        result = waivers.apply(outcome.result, allowed, device, today)
        counted.append(msgspec.structs.replace(outcome, status=result.status, message=result.message))
    return counted


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _resume(order: Order, suite: str, plugin: str) -> tuple[Header, list[Outcome]]:
    """The header of this run, and what an unfinished one in the folder has done already."""
    path = order.folder / issue.UNFINISHED
    fresh = Header(order.device, order.level, order.only, order.nonce or secrets.token_hex(16), suite, plugin)
    if not path.exists():
        if any(p.name != issue.SAMPLES for p in order.folder.iterdir()):
            raise ConfigError(f"{order.folder} holds something else: give an empty folder with --out")
        path.write_bytes(msgspec.json.encode(fresh) + b"\n")
        return fresh, []
    first, _, rest = path.read_bytes().partition(b"\n")
    try:
        found = msgspec.json.decode(first, type=Header)
        lines = decode_lines(rest[: rest.rfind(b"\n") + 1])  # the last line may be cut off
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} cannot be resumed ({error}): remove {order.folder}") from error
    if found != Header(order.device, order.level, order.only, order.nonce or found.nonce, suite, plugin):
        raise ConfigError(f"{order.folder} holds an unfinished run of something else: remove it, or give another --out")
    path.write_bytes(first + b"\n" + encode_lines(lines))
    return found, [line for line in lines if isinstance(line, Outcome)]
