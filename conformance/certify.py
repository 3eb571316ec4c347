"""One examination of a device from start to bundle: declare, run, judge, write."""

from __future__ import annotations

import datetime
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from conformance import identity
from conformance.case import Result
from conformance.certificate import issue, waivers
from conformance.certificate.records import Declared, Outcome, Predicate, decode_lines, encode_lines
from conformance.child import Setting, Task
from conformance.declare import declare
from conformance.mutants import record
from conformance.run import run
from conformance.target import open_target
from core.errors import ConfigError

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Order:
    """What is asked for.

    only     pattern of case names; a part of the cases makes no certificate
    jobs     processes; 0: one on an accelerator, else one per processor
    nonce    from whoever will check; empty: a random one
    folder   for the bundle; one with an unfinished run in it is resumed
    """

    device: str
    folder: Path
    level: str = "kernel"
    only: str = "*"
    jobs: int = 0
    nonce: str = ""
    waivers: Path | None = None
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


def certify(order: Order, progress: Progress) -> tuple[Predicate | None, list[Declared], list[Outcome]]:
    """Run what is asked for. The predicate is None when only a part was run, and no certificate is written.

    Raises: ConfigError, PluginError and DeviceError when it cannot be run.
    """
    started = _now()
    target = open_target(order.device)
    plugin = identity.plugin(target.facts.name)
    allowed = waivers.read_file(order.waivers)
    suite = issue.suite_record()
    order.folder.mkdir(parents=True, exist_ok=True)
    (order.folder / issue.SAMPLES).mkdir(exist_ok=True)
    header, outcomes = _resume(order, suite.tree_sha256, plugin.digest)
    root = identity.root_seed(suite.tree_sha256, plugin.digest, header.nonce)
    declared = list(declare(target, order.level, order.only))
    if not declared:
        raise ConfigError(f"--only {order.only!r} matches no case: `core certify --mode support` lists them")

    done = {outcome.task for outcome in outcomes}
    todo = [d.task for d in declared if not d.unsupported and d.task not in done]
    total = len(todo) + len(done)
    jobs = order.jobs or (1 if target.facts.accelerator else os.cpu_count() or 1)
    threads = max(1, (os.cpu_count() or 1) // jobs) if jobs > 1 else 0
    today = datetime.date.today()
    with (order.folder / issue.UNFINISHED).open("ab") as log:

        def take(task: Task, result: Result, sample: str) -> None:
            outcome = Outcome.of(task, waivers.apply(result, allowed, target.facts.name, today), sample)
            outcomes.append(outcome)
            log.write(encode_lines([outcome]))
            log.flush()
            progress(len(outcomes), total)

        progress(len(outcomes), total)
        setting = Setting(target.facts.name, root, threads, order.folder / issue.SAMPLES)
        run(todo, setting, take, jobs)
    place = {d.task: number for number, d in enumerate(declared)}
    outcomes.sort(key=lambda outcome: place[outcome.task])
    if order.only != "*":
        return None, declared, outcomes
    finished = issue.Run(
        level=order.level,
        plugin=plugin,
        device=issue.device_record(target),
        nonce=header.nonce,
        declared=declared,
        outcomes=outcomes,
        waivers=allowed,
        mutation=record.read(),
        started=started,
        finished=_now(),
    )
    predicate = issue.write(order.folder, finished, order.keys)
    (order.folder / issue.UNFINISHED).unlink()
    return predicate, declared, outcomes


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
