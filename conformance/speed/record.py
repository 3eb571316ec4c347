"""The speed of a device's kernels, as measured and kept: what others are compared with.

A record is a JSON file. `records/` holds those that ship; the first is of a CPU, until a GPU's is measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import numpy as np

from conformance.speed.probe import LEAST_PROBED, MOST_PROBED, Ceilings
from core.errors import ConfigError

SCHEMA = 1
RECORDS = Path(__file__).parent / "records"
DEFAULT = RECORDS / "cpu.json"

GRADES = (("A", 0.9, 0.7), ("B", 0.7, 0.5), ("C", 0.5, 0.3))
"""Name, least geometric mean of rho, least tenth percentile. Below them all: functional."""

UNGRADED = "none: too few cases count"
WRONG = "wrong"
"""How the trouble of a case begins whose results were wrong."""

LEAST_SHARE = 0.75
"""Of the baseline's cases that count, how many must count here too, in every class, for a grade."""


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One case. `eta` is the least possible time / the time; `trouble` says why the number does not count."""

    case: str
    row: str
    kind: str
    provider: str
    seconds: float
    low_s: float
    high_s: float
    flops: float
    moved_bytes: float
    eta: float
    trouble: str = ""


class SpeedRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All cases of a device in one dtype, and what the device was measured to reach, and states to reach at best."""

    schema: int
    device: str
    arch: str
    dtype: str
    versions: dict[str, str]
    flops_per_s: float
    bytes_per_s: float
    launch_s: float
    cases: list[Measured]
    stated_flops_per_s: float | None = None
    stated_bytes_per_s: float | None = None

    @property
    def limits(self) -> Ceilings:
        """What the device is held to: eta is the least time by these / the time."""
        probed = Ceilings(self.flops_per_s, self.bytes_per_s, self.launch_s)
        return probed.held_to(self.stated_flops_per_s, self.stated_bytes_per_s)

    @property
    def wrong(self) -> list[Measured]:
        """Cases whose results were wrong when they were timed."""
        return [m for m in self.cases if m.trouble.startswith(WRONG)]

    @property
    def trouble(self) -> list[str]:
        """Where the probes are far from what the device states."""
        products = ("FLOP/s", self.flops_per_s, self.stated_flops_per_s)
        memory = ("bytes/s", self.bytes_per_s, self.stated_bytes_per_s)
        return [
            f"the probe reached {probed:.3g} {unit}, {probed / stated:.2f} of the {stated:.3g} that the device states"
            for unit, probed, stated in (products, memory)
            if stated and not LEAST_PROBED <= probed / stated <= MOST_PROBED
        ]


class Standing(msgspec.Struct, frozen=True):
    """Beside a baseline. Without a case in common that counts, there is only why there is no grade.

    rho       eta / the baseline's eta, per case
    raw       the baseline's time / the time, per case: reported, not graded
    classes   geometric mean, tenth percentile and worst of rho, by class; `overall`: of all cases
    """

    rho: dict[str, float]
    raw: dict[str, float]
    classes: dict[str, tuple[float, float, float]]
    overall: tuple[float, float, float] | None
    grade: str


def read(path: Path) -> SpeedRecord:
    """Raises: ConfigError for what is no record, or of another schema."""
    return decode(data(path), str(path))


def data(path: Path) -> bytes:
    """The bytes of a file. Raises: ConfigError when there is none."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def decode(held: bytes, name: str) -> SpeedRecord:
    """Raises: ConfigError for what is no record, or of another schema."""
    try:
        record = msgspec.json.decode(held, type=SpeedRecord)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{name} is not a record of speed: {error}") from error
    if record.schema != SCHEMA:
        raise ConfigError(f"{name} has schema {record.schema}: this version reads {SCHEMA}")
    return record


def write(path: Path, record: SpeedRecord) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(record)) + b"\n")


def compare(record: SpeedRecord, baseline: SpeedRecord) -> Standing:
    """Where a device stands. Cases count that both have, in the same form but for the dtype."""
    theirs = {_key(m, baseline.dtype): m for m in baseline.cases if not m.trouble}
    both = [
        (m, theirs[_key(m, record.dtype)]) for m in record.cases if _key(m, record.dtype) in theirs and not m.trouble
    ]
    if not both:
        return Standing({}, {}, {}, None, UNGRADED)
    rho = {m.case: m.eta / other.eta for m, other in both}
    raw = {m.case: other.seconds / m.seconds for m, other in both}
    kinds = dict.fromkeys(m.kind for m, _ in both)
    classes = {kind: _summary(rho[m.case] for m, _ in both if m.kind == kind) for kind in kinds}
    overall = _summary(rho.values())
    grade = next((name for name, mean, low in GRADES if overall[0] >= mean and overall[1] >= low), "functional")
    if any(len([m for m, _ in both if m.kind == kind]) < LEAST_SHARE * count for kind, count in _kinds(theirs).items()):
        grade = UNGRADED
    return Standing(rho, raw, classes, overall, grade)


def _kinds(cases: Mapping[str, Measured]) -> Counter[str]:
    return Counter(m.kind for m in cases.values())


def _key(measured: Measured, dtype: str) -> str:
    return measured.case.replace(f"dtype={dtype}", "dtype=*")


def _summary(values: Iterable[float]) -> tuple[float, float, float]:
    found = np.asarray(list(values))
    return math.exp(float(np.mean(np.log(found)))), float(np.quantile(found, 0.1)), float(found.min())
