"""The parts of a full certificate beyond its cases: what ONNX's cases and the timing of kernels came to.

Sections of the predicate follow from files of the bundle, and anyone can derive them again.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from conformance.certificate.records import OnnxSection, Predicate, SpeedSection
from conformance.certificate.waivers import Waiver, day_of
from conformance.onnx_cases.fates import Fate, OnnxRecord
from conformance.onnx_cases.left_out import REASONS
from conformance.onnx_cases.map import ADAPTERS
from conformance.speed.cases import timed
from conformance.speed.record import RECORDS, SpeedRecord, Standing, compare, decode
from core.errors import ConfigError
from core.kernels.bind import REFERENCE
from core.kernels.cost import COSTS
from core.plugin.facts import DTYPES

LEVEL = "full"
ONNX, SPEED, BASELINE = "onnx.json", "speed.json", "baseline.json"


@dataclass(frozen=True)
class Extra:
    """What a full certificate has beyond its cases. `baseline` are the bytes of the record to compare with."""

    onnx: OnnxRecord
    speed: SpeedRecord
    baseline: bytes

    @property
    def beside(self) -> SpeedRecord:
        return decode(self.baseline, BASELINE)

    @property
    def standing(self) -> Standing:
        return compare(self.speed, self.beside)

    def write(self, folder: Path) -> None:
        for name, made in ((ONNX, self.onnx), (SPEED, self.speed)):
            (folder / name).write_bytes(msgspec.json.format(msgspec.json.encode(made)) + b"\n")
        (folder / BASELINE).write_bytes(self.baseline)


def read(folder: Path) -> Extra | None:
    """Of a bundle that has such files; None for one that has none. Raises: ConfigError for what is no such file."""
    if not any((folder / name).exists() for name in (ONNX, SPEED, BASELINE)):
        return None
    try:
        onnx = msgspec.json.decode((folder / ONNX).read_bytes(), type=OnnxRecord)
        return Extra(onnx, decode((folder / SPEED).read_bytes(), SPEED), (folder / BASELINE).read_bytes())
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{folder / ONNX} is not a record of ONNX's cases: {error}") from error


def onnx_section(record: OnnxRecord) -> OnnxSection:
    count = record.counts
    return OnnxSection(
        version=record.version,
        device=count["device"],
        reference=count["reference"],
        refused=count["refused"],
        waived=count["waived"],
        left_out=count["left out"],
        failures=[case.name for case in record.having("failed")],
    )


def speed_section(extra: Extra) -> SpeedSection:
    """Rho to three decimals: the same wherever it is derived."""
    standing, beside = extra.standing, extra.beside
    digest = hashlib.sha256(extra.baseline).hexdigest()
    return SpeedSection(
        grade=standing.grade,
        rho=_rounded(*standing.overall) if standing.overall else None,
        baseline=f"{beside.device}, {beside.arch}",
        baseline_sha256=digest,
        ships=digest in {hashlib.sha256(path.read_bytes()).hexdigest() for path in RECORDS.glob("*.json")},
        counted=len(standing.rho),
        cases=len(extra.speed.cases),
        wrong=[m.case for m in extra.speed.wrong],
        trouble=extra.speed.trouble,
    )


def _rounded(mean: float, low: float, worst: float) -> tuple[float, float, float]:
    return round(mean, 3), round(low, 3), round(worst, 3)


def complaints(predicate: Predicate, extra: Extra | None, waivers: Sequence[Waiver]) -> Iterator[str]:
    """What is wrong with the sections, beside the files and waivers of the bundle."""
    if (predicate.level == LEVEL) != (extra is not None):
        yield f"{ONNX}, {SPEED} and {BASELINE} belong to level {LEVEL}, and to no other: this is {predicate.level}"
    if predicate.onnx != (onnx_section(extra.onnx) if extra else None):
        yield f"what it says of ONNX's cases does not follow from {ONNX}"
    if predicate.speed != (speed_section(extra) if extra else None):
        yield f"what it says of speed does not follow from {SPEED} and {BASELINE}"
    if extra is None:
        return
    if sorted(case.name for case in extra.onnx.cases) != sorted([*ADAPTERS, *REASONS]):
        yield f"{ONNX} does not have each of ONNX's cases once"
    for case in extra.onnx.cases:
        waived = any(w.covers(case.title, predicate.device.name, day_of(predicate.finished)) for w in waivers)
        if not _follows(case, waived):
            yield f"{case.title}: {case.fate!r} does not follow from what was measured and waived"
    yield from _of_speed(extra.speed)
    if extra.speed.device != predicate.device.name:
        yield f"{SPEED} is of {extra.speed.device}, not of {predicate.device.name}"


def _of_speed(record: SpeedRecord) -> Iterator[str]:
    if record.dtype not in DTYPES:
        yield f"{SPEED} is of the dtype {record.dtype}"
        return
    work = [(t.case.name, t.kind, *COSTS[t.case.row](t.sizes)) for t in timed(record.dtype)]
    if sorted(work) != sorted((m.case, m.kind, m.flops, m.moved_bytes) for m in record.cases):
        yield f"{SPEED} does not have each of the timed cases once, with its work"
    for m in record.cases:
        least = record.limits.least_s(m.flops, m.moved_bytes)
        if not math.isclose(m.eta * m.seconds, least if m.seconds else 0.0):
            yield f"{m.case}: its eta does not follow from its time and the ceilings"


def _follows(case: Fate, waived: bool) -> bool:
    """Whether the fate of a case agrees with its error, its provider, and what is waived."""
    if case.name in REASONS or case.fate in ("left out", "refused"):
        known = (case.fate, case.message) == ("left out", REASONS.get(case.name))
        return known or (case.fate == "refused" and case.name in ADAPTERS)
    if waived:
        return case.fate in ("waived", "failed")
    passed = "reference" if case.provider == REFERENCE else "device"
    return case.fate == "failed" or (case.fate == passed and case.ratio <= 1)
