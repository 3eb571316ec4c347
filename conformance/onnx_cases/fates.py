"""What became of ONNX's cases on a device: the same words for the command, the bundle and the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.metadata import version

import msgspec

from conformance.case import Result
from conformance.onnx_cases.left_out import REASONS
from conformance.onnx_cases.map import ADAPTERS
from core.errors import ConfigError
from core.kernels.bind import REFERENCE

ROW = "onnx"
"""Of the tasks that these cases are, though the table has none of that name."""

FATES = ("device", "reference", "failed", "refused", "waived", "left out")
"""What can become of a case. Only "device" counts: its own kernels gave the right result."""

LARGEST_RATIO = 1e300
"""Stands for infinity, which JSON does not have."""


class Fate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One case. `ratio`: its greatest error, as part of what is allowed; `message`: why it does not count."""

    name: str
    operator: str
    fate: str
    provider: str
    message: str
    ratio: float

    @classmethod
    def of(cls, name: str, operator: str, result: Result | None) -> Fate:
        """Of a case that no row takes, there is no result."""
        if result is None:
            return cls(name, operator, "left out", "", REASONS[name], 0.0)
        passed = "reference" if result.provider == REFERENCE else "device"
        known = {"pass": passed, "unsupported": "refused", "waived": "waived"}
        ratio = min(max((f.ratio for f in result.findings), default=0.0), LARGEST_RATIO)
        return cls(name, operator, known.get(result.status, "failed"), result.provider, result.message, ratio)

    @property
    def title(self) -> str:
        """As examinations and waivers name the case."""
        return title_of(self.operator, self.name)


class OnnxRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every case. `version`: of the package that they are of."""

    version: str
    cases: list[Fate]

    @property
    def counts(self) -> dict[str, int]:
        found = Counter(case.fate for case in self.cases)
        return {fate: found[fate] for fate in FATES}

    def having(self, fate: str) -> list[Fate]:
        return [case for case in self.cases if case.fate == fate]


def title_of(operator: str, name: str) -> str:
    return f"{ROW}/{operator}/{name}"


def name_of(title: str) -> str:
    return title.rpartition("/")[2]


def check(operators: Mapping[str, str]) -> None:
    """Raises: ConfigError when these are not the cases of the package that the map was made for."""
    known = [*ADAPTERS, *REASONS]
    if other := set(known) ^ set(operators):
        raise ConfigError(
            f"the installed onnx package has other cases than the {len(known)} that are known, such as {min(other)}: "
            "install onnx 1.23.2"
        )


def titles(operators: Mapping[str, str]) -> list[str]:
    """Of those of the cases that a row takes."""
    return [title_of(operator, name) for name, operator in operators.items() if name in ADAPTERS]


def record(operators: Mapping[str, str], results: Mapping[str, Result]) -> OnnxRecord:
    """What became of these cases; those without a result are left out."""
    cases = [Fate.of(name, operator, results.get(name)) for name, operator in operators.items()]
    return OnnxRecord(version("onnx"), cases)


def reasons(cases: Iterable[Fate]) -> list[tuple[str, int]]:
    """Each message once, with the number of cases it is of; the most frequent first."""
    return Counter(case.message for case in cases).most_common()
