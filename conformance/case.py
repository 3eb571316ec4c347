"""What is asked of a device, and what came of it: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Value = str | int | float | bool | None | tuple[int, ...]

STATUSES = ("pass", "fail", "error", "unsupported", "waived")


@dataclass(frozen=True)
class Case:
    """One question to one kernel, or to a whole engine. Its name says everything about it but the seed.

    row      the kernel, as in the table; or "engine"
    family   where the inputs come from: "normal", "selector", "poison", ... ; families are independent of each other
    params   shapes, dtype, and what is fixed at build
    """

    row: str
    family: str
    params: Mapping[str, Value] = field(default_factory=dict)

    @classmethod
    def of(cls, row: str, family: str, **params: Value) -> Case:
        return cls(row, family, params)

    def __getitem__(self, key: str) -> Any:
        return self.params[key]

    def get(self, key: str, default: Value = None) -> Any:
        return self.params.get(key, default)

    @property
    def name(self) -> str:
        """`row/family/key=value,...`; a tuple is written 1x2x3."""
        return f"{self.row}/{self.family}/" + ",".join(f"{k}={_show(v)}" for k, v in self.params.items())


def _show(value: Value) -> str:
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return str(value)


@dataclass(frozen=True)
class Finding:
    """What one check measured.

    check    A elementwise bound, B rms beside our own eager, C bias, D exact bits, E memory, F metamorphic relation;
             of a whole engine: M distance from the reference model, X two ways through the engine
    output   which result
    ratio    measured / allowed: more than 1 fails; infinite where nothing is allowed
    detail   where, and how much
    """

    check: str
    output: str
    ratio: float
    detail: str = ""

    @property
    def ok(self) -> bool:
        return self.ratio <= 1


@dataclass(frozen=True)
class Result:
    """What became of a case with one provider's kernel.

    provider   whose kernel the binder recorded
    status     one of STATUSES
    message    why it is not a pass
    findings   of every check, also of those that passed
    """

    case: str
    provider: str
    status: str
    message: str = ""
    findings: tuple[Finding, ...] = ()
    seconds: float = 0.0
