"""What the files of a bundle hold. Decoding refuses unknown and missing fields.

    certificate.json      an in-toto Statement: subjects are all other files, by SHA-256
    certificate.sig.json  where signed: a DSSE envelope around the bytes of certificate.json
    results.jsonl         first what was declared to be run, then what came of it
    samples/              outputs of some cases, drawn by the seed
    onnx.json             level "full": what became of each of ONNX's cases
    speed.json            level "full": how fast kernels are; beside baseline.json, the record it is compared with
    waivers.json  environment.json  junit.xml  report.html

Source: in-toto Attestation Framework v1 (Statement); DSSE v1 (envelope).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from conformance.case import Finding, Result
from conformance.child import Task
from conformance.onnx_cases.fates import LARGEST_RATIO

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:core:certificate:v1"
SCHEMA_VERSION = 1


class Declared(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="declared", tag_field="kind"):
    """Before the run: a case with one provider's kernel, and why it is not supported, if so."""

    row: str
    case: str
    provider: str
    unsupported: str = ""

    @property
    def task(self) -> Task:
        return Task(self.row, self.case, self.provider)


class Outcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="result", tag_field="kind"):
    """After the run. `bound_by` is whose kernel the binder recorded; `sample` the SHA-256 of its outputs, if kept."""

    row: str
    case: str
    provider: str
    bound_by: str
    status: str
    message: str
    findings: list[tuple[str, str, float, str]]
    seconds: float
    sample: str = ""

    @classmethod
    def of(cls, task: Task, result: Result, sample: str) -> Outcome:
        findings = [(f.check, f.output, min(f.ratio, LARGEST_RATIO), f.detail) for f in result.findings]
        return cls(
            task.row, task.case, task.provider, result.provider, result.status, result.message, findings,
            round(result.seconds, 4), sample,
        )  # fmt: skip

    @property
    def task(self) -> Task:
        return Task(self.row, self.case, self.provider)

    @property
    def result(self) -> Result:
        findings = tuple(Finding(*finding) for finding in self.findings)
        return Result(self.case, self.bound_by, self.status, self.message, findings, self.seconds)


Line = Declared | Outcome
_LINE = msgspec.json.Decoder(Line)


def encode_lines(lines: Iterable[Line]) -> bytes:
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def decode_lines(data: bytes) -> list[Line]:
    """Raises: msgspec.DecodeError."""
    return [_LINE.decode(line) for line in data.splitlines()]


class Seed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`root` follows from suite, plugin and nonce; whoever checks may have given the nonce."""

    nonce: str
    root: str


class Suite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: str
    tree_sha256: str
    core_sha256: str
    mustpass_sha256: str


class PluginRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    distribution: str
    version: str
    files: dict[str, str]


class DeviceRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As its plugin states it. `providers` has, per row, whose kernels there are; of the engine, the device.

    replaced   what its `torch_extension` replaces of torch
    """

    name: str
    arch: str
    dtypes: list[str]
    accelerator: bool
    memory_bytes: int
    torch_extension: str | None
    replaced: list[str]
    providers: dict[str, list[str]]


class Counts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of cases with one provider each. `missing` were declared and have no result."""

    passed: int = 0
    failed: int = 0
    waived: int = 0
    unsupported: int = 0
    missing: int = 0


class Mutation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the checks did on the catalogue of wrong and right kernels; `right_cases` were run on right ones."""

    catalogue_sha256: str
    wrong: int
    killed: int
    right: int
    refused: int
    right_cases: int


class OnnxSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of `onnx.json`, how many became what. `device` counts: its own kernels were right. `failures` by name."""

    version: str
    device: int
    reference: int
    refused: int
    waived: int
    left_out: int
    failures: list[str]


class SpeedSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of `speed.json`, beside `baseline.json`.

    grade      or "none: " and why
    rho        geometric mean, tenth percentile and worst of all cases; None where no case counts
    baseline   the device and its chip; `ships`: whether that record is one of the suite
    counted    cases of which rho counts, of `cases`
    wrong      cases whose timed results were wrong, by name
    trouble    where probes are far from what the device states to reach
    """

    grade: str
    rho: tuple[float, float, float] | None
    baseline: str
    baseline_sha256: str
    ships: bool
    counted: int
    cases: int
    wrong: list[str]
    trouble: list[str]


class Predicate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is certified.

    result   PASSED or FAILED
    onnx, speed   of level "full"
    level    what was run: "quick", "kernel", "engine" or "full"
    tier     "production" when every production kernel is the device's own, else "functional"
    """

    schema_version: int
    result: str
    level: str
    tier: str
    suite: Suite
    plugin: PluginRecord
    device: DeviceRecord
    seed: Seed
    counts: Counts
    mutation: Mutation | None
    onnx: OnnxSection | None
    speed: SpeedSection | None
    started: str
    finished: str


class Subject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    digest: dict[str, str]


class Statement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"type_": "_type"}):
    type_: str
    subject: list[Subject]
    predicateType: str
    predicate: Predicate
