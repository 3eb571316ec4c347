"""Known failures that someone answers for, until a day.

A file `waivers.json`: [{"test": "linear/*/dtype=float16*", "device": "X", "owner": "...", "issue": "https://...",
"reason": "...", "expires": "2027-01-31"}]. A waiver that has expired waives nothing; a case that passes although it is
waived fails the certificate, so that waivers do not outlive their reason.
"""

from __future__ import annotations

import datetime
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from conformance.case import Result
from core.errors import ConfigError


class Waiver(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`test` is a pattern of case names, as a shell has them."""

    test: str
    device: str
    owner: str
    issue: str
    reason: str
    expires: datetime.date

    def covers(self, case: str, device: str, today: datetime.date) -> bool:
        return device == self.device and today <= self.expires and fnmatchcase(case, self.test)


def read(data: bytes, name: str) -> tuple[Waiver, ...]:
    """Raises: ConfigError for what is not a list of waivers, or has an empty field."""
    try:
        waivers = msgspec.json.decode(data, type=tuple[Waiver, ...])
    except msgspec.DecodeError as error:
        raise ConfigError(f"{name} is not a list of waivers: {error}") from error
    for waiver in waivers:
        for field in ("test", "device", "owner", "issue", "reason"):
            if not getattr(waiver, field).strip():
                raise ConfigError(f"{name}: a waiver of {waiver.test!r} has no {field}: every one needs it")
    return waivers


def read_file(path: Path | None) -> tuple[Waiver, ...]:
    """The waivers of a file; none without a file."""
    if path is None:
        return ()
    try:
        return read(path.read_bytes(), str(path))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def day_of(moment: str) -> datetime.date:
    """Of an ISO 8601 moment: waivers of a run are those that held on the day it ended."""
    return datetime.datetime.fromisoformat(moment).date()


def apply(result: Result, waivers: tuple[Waiver, ...], device: str, today: datetime.date) -> Result:
    """The result as it counts: "waived", or failed because it passed."""
    covering = next((w for w in waivers if w.covers(result.case, device, today)), None)
    if covering is None:
        return result
    if result.status in ("fail", "error"):
        return replace(result, status="waived", message=f"{covering.issue}: {result.message}")
    if result.status == "pass":
        return replace(
            result, status="fail", message=f"passes, although it is waived ({covering.issue}): drop the waiver"
        )
    return result
