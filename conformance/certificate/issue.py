"""From outcomes to a bundle on disk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from safetensors.torch import load_file

from conformance import engine, identity, mustpass
from conformance.certificate import junit, sections
from conformance.certificate.records import (
    PREDICATE_TYPE,
    SCHEMA_VERSION,
    STATEMENT_TYPE,
    Counts,
    Declared,
    DeviceRecord,
    Line,
    Mutation,
    OnnxSection,
    Outcome,
    PluginRecord,
    Predicate,
    Seed,
    SpeedSection,
    Statement,
    Subject,
    Suite,
    encode_lines,
)
from conformance.certificate.sections import Extra
from conformance.certificate.sign import sign
from conformance.certificate.waivers import Waiver
from conformance.child import sample_name
from conformance.kernels import all_exams
from conformance.report.page import render
from conformance.target import Target
from core.kernels.bind import REFERENCE
from core.kernels.table import TABLE
from core.plugin.identity import Plugin, sha256

CERTIFICATE, SIGNATURES, RESULTS = "certificate.json", "certificate.sig.json", "results.jsonl"
UNFINISHED = "unfinished.jsonl"  # outcomes so far, while a run goes on
WAIVERS, ENVIRONMENT, JUNIT, REPORT, SAMPLES = "waivers.json", "environment.json", "junit.xml", "report.html", "samples"


@dataclass(frozen=True)
class Run:
    """A finished run. `extra`: of level "full"."""

    level: str
    plugin: Plugin
    device: DeviceRecord
    nonce: str
    declared: Sequence[Declared]
    outcomes: Sequence[Outcome]
    waivers: tuple[Waiver, ...]
    mutation: Mutation | None
    started: str
    finished: str
    extra: Extra | None = None

    @property
    def counts(self) -> Counts:
        return count(self.declared, self.outcomes)


def count(declared: Iterable[Declared], outcomes: Sequence[Outcome]) -> Counts:
    """How many of each kind; an error counts as failed."""
    status = [outcome.status for outcome in outcomes]
    supported = [d for d in declared if not d.unsupported]
    done = {outcome.task for outcome in outcomes}
    return Counts(
        passed=status.count("pass"),
        failed=status.count("fail") + status.count("error"),
        waived=status.count("waived"),
        unsupported=sum(1 for d in declared if d.unsupported),
        missing=sum(1 for d in supported if d.task not in done),
    )


def device_record(target: Target) -> DeviceRecord:
    facts = target.facts
    return DeviceRecord(
        facts.name,
        facts.arch,
        list(facts.dtypes),
        facts.accelerator,
        facts.memory_bytes,
        facts.torch_extension,
        list(target.replaced),
        {**{row: target.providers(row) for row in all_exams()}, engine.ROW: [facts.name]},
    )


def tier(device: DeviceRecord, outcomes: Iterable[Outcome]) -> str:
    """ "production" when every production kernel that was examined is the device's own, else "functional"."""
    needed = {row for row in device.providers if row in TABLE and TABLE[row].production}
    own = {o.row for o in outcomes if o.bound_by != REFERENCE and o.status in ("pass", "waived")}
    return "production" if needed <= own else "functional"


def result(counts: Counts, mutation: Mutation | None, onnx: OnnxSection | None, speed: SpeedSection | None) -> str:
    """PASSED when nothing failed or is missing, and the checks themselves were found to be good. Slow is not failed."""
    checked = mutation is not None and mutation.killed == mutation.wrong and mutation.refused == 0
    wrong = counts.failed or counts.missing or (onnx and onnx.failures) or (speed and speed.wrong)
    return "PASSED" if checked and counts.passed and not wrong else "FAILED"


def suite_record() -> Suite:
    return Suite(**identity.suite(), mustpass_sha256=mustpass.digest())


def seed_record(suite: Suite, plugin: Plugin, nonce: str) -> Seed:
    return Seed(nonce, identity.root_seed(suite.tree_sha256, plugin.digest, nonce).hex())


def predicate(run: Run) -> Predicate:
    suite, extra = suite_record(), run.extra
    onnx = sections.onnx_section(extra.onnx) if extra else None
    speed = sections.speed_section(extra) if extra else None
    return Predicate(
        schema_version=SCHEMA_VERSION,
        result=result(run.counts, run.mutation, onnx, speed),
        level=run.level,
        tier=tier(run.device, run.outcomes),
        suite=suite,
        plugin=PluginRecord(run.plugin.name, run.plugin.distribution, run.plugin.version, dict(run.plugin.files)),
        device=run.device,
        seed=seed_record(suite, run.plugin, run.nonce),
        counts=run.counts,
        mutation=run.mutation,
        onnx=onnx,
        speed=speed,
        started=run.started,
        finished=run.finished,
    )


def divergences(samples: Path, outcomes: Iterable[Outcome]) -> dict[str, tuple[list[float], list[float]]]:
    """What engine cases kept of KL: by model and dtype, of the device and of our own engine, of all ways together."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    cases = {case.name: case for case in engine.cases()}
    for outcome in outcomes:
        if outcome.row == engine.ROW and outcome.sample:
            kept, case = load_file(samples / sample_name(outcome.task)), cases[outcome.case]
            device, noise = found.setdefault(f"{case['model']}, {case['dtype']}", ([], []))
            device.extend(kept["kl"].tolist())
            noise.extend(kept["noise"].tolist())
    return found


def write(folder: Path, run: Run, keys: list[Path]) -> Predicate:
    """Complete the bundle in `folder`, where samples lie already, and sign it with `keys`."""
    made = predicate(run)
    lines: list[Line] = [*run.declared, *run.outcomes]
    (folder / RESULTS).write_bytes(encode_lines(lines))
    (folder / WAIVERS).write_bytes(msgspec.json.format(msgspec.json.encode(run.waivers)))
    (folder / ENVIRONMENT).write_bytes(msgspec.json.format(msgspec.json.encode(identity.environment())))
    junit.write(folder / JUNIT, run.declared, run.outcomes, run.extra)
    if run.extra:
        run.extra.write(folder)
    kls = divergences(folder / SAMPLES, run.outcomes)
    (folder / REPORT).write_text(render(made, run.declared, run.outcomes, run.extra, kls))
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name not in (CERTIFICATE, SIGNATURES, UNFINISHED))
    subjects = [Subject(p.relative_to(folder).as_posix(), {"sha256": sha256(p)}) for p in files]
    data = msgspec.json.format(msgspec.json.encode(Statement(STATEMENT_TYPE, subjects, PREDICATE_TYPE, made)))
    (folder / CERTIFICATE).write_bytes(data)
    if keys:
        (folder / SIGNATURES).write_bytes(sign(data, keys))
    return made
