"""A bundle of level "full" of the cpu device with results that nobody measured, but for what tests ask to be real."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from conformance import engine, identity
from conformance.case import Case, Finding, Result
from conformance.certificate import issue
from conformance.certificate.records import Mutation, Outcome
from conformance.certificate.sections import Extra
from conformance.child import Task, keep, sample_name
from conformance.declare import declare
from conformance.mutants import record
from conformance.onnx_cases import fates
from conformance.onnx_cases.left_out import REASONS
from conformance.onnx_cases.map import ADAPTERS
from conformance.speed import record as kept
from conformance.target import open_target
from core.plugin.identity import sha256

DAY = "2026-01-01T00:00:00+00:00"
NONCE = "n"
OPERATORS = dict.fromkeys([*ADAPTERS, *REASONS], "Op")


def onnx_record(failing: str = "", by_reference: str = "") -> fates.OnnxRecord:
    def result(name: str) -> Result:
        status, ratio = ("fail", 3.0) if name == failing else ("pass", 0.5)
        provider = "reference" if name == by_reference else "cpu"
        return Result(fates.title_of("Op", name), provider, status, "", (Finding("A", "y", ratio),))

    return fates.record(OPERATORS, {name: result(name) for name in ADAPTERS})


def slower(times: float) -> kept.SpeedRecord:
    """The record that ships, of a machine that takes so many times as long."""
    shipped = kept.read(kept.DEFAULT)
    cases = [msgspec.structs.replace(m, seconds=m.seconds * times, eta=m.eta / times) for m in shipped.cases]
    return msgspec.structs.replace(shipped, cases=cases)


def extra(onnx: fates.OnnxRecord, speed: kept.SpeedRecord) -> Extra:
    return Extra(onnx, speed, kept.data(kept.DEFAULT))


def full_run(more: Extra, samples: Path, real: Callable[[Case], bool] = lambda _: False) -> issue.Run:
    """Every case of the level passes; those of whole engines that are `real` are run, and keep their samples."""
    target, plugin = open_target("cpu"), identity.plugin("cpu")
    declared = list(declare(target, "full"))
    root = bytes.fromhex(issue.seed_record(issue.suite_record(), plugin, NONCE).root)
    cases = {case.name: case for case in engine.cases()}

    def outcome(task: Task) -> Outcome:
        if task.row != engine.ROW or not real(cases[task.case]):
            return Outcome.of(task, Result(task.case, task.provider, "pass"), "")
        result, outputs = engine.examine(cases[task.case], "cpu", root)
        return Outcome.of(task, result, keep(samples / sample_name(task), outputs))

    samples.mkdir(parents=True)
    outcomes = [outcome(d.task) for d in declared if not d.unsupported]
    score = Mutation(record.catalogue_sha256(), 1, 1, 1, 0, 1)
    device = issue.device_record(target)
    return issue.Run("full", plugin, device, NONCE, declared, outcomes, (), score, DAY, DAY, more)


def relist(folder: Path) -> None:
    """What a forger does next: put the new hashes into the certificate."""
    statement = json.loads((folder / issue.CERTIFICATE).read_bytes())
    files = [p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("certificate.")]
    statement["subject"] = [
        {"name": p.relative_to(folder).as_posix(), "digest": {"sha256": sha256(p)}} for p in sorted(files)
    ]
    (folder / issue.CERTIFICATE).write_text(json.dumps(statement))


def edit_predicate(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    statement = json.loads((folder / issue.CERTIFICATE).read_bytes())
    change(statement["predicate"])
    (folder / issue.CERTIFICATE).write_text(json.dumps(statement))


def edit_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a file of a bundle, and relist it."""
    held = json.loads(path.read_bytes())
    change(held)
    path.write_text(json.dumps(held))
    relist(path.parent)
