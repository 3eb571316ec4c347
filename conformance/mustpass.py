"""The committed lists of what must pass: every name of the cases of kernels and of a whole engine, for all devices.

`python -m conformance.mustpass` writes them anew; a test fails while they differ from the cases.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from conformance import engine
from conformance.case import Case
from conformance.kernels import all_exams

FOLDER = Path(__file__).parent / "mustpass"
KERNEL_LEVELS = ("quick", "kernel")
LEVELS = (*KERNEL_LEVELS, "engine")
"""The last one holds the one before it; its own list has the cases of a whole engine alone."""
QUICK_PER_FAMILY = 1


def cases(level: str) -> list[Case]:
    """Every case of a level's own list: of "quick", the first of each kernel, family and dtype."""
    if level == "engine":
        return engine.cases()
    found = [case for exam in all_exams().values() for case in exam.cases()]
    return found if level == "kernel" else list(_first(found))


def _first(found: Iterable[Case]) -> Iterable[Case]:
    taken: dict[tuple[str, str, object], int] = {}
    for case in found:
        key = case.row, case.family, case.get("dtype")
        taken[key] = taken.get(key, 0) + 1
        if taken[key] <= QUICK_PER_FAMILY:
            yield case


def path(level: str) -> Path:
    return FOLDER / f"{level}.txt"


def listed(level: str) -> list[str]:
    """A level's own list, as committed."""
    return path(level).read_text().splitlines()


def names(level: str) -> list[str]:
    """The cases that a level requires. Level "full" requires those of "engine", and more that is not cases."""
    return listed("kernel") + listed("engine") if level in ("engine", "full") else listed(level)


def digest() -> str:
    """One hash of all lists."""
    return hashlib.sha256(b"\0".join(path(level).read_bytes() for level in LEVELS)).hexdigest()


def write() -> None:
    FOLDER.mkdir(exist_ok=True)
    for level in LEVELS:
        path(level).write_text("".join(f"{case.name}\n" for case in cases(level)))


if __name__ == "__main__":
    write()
