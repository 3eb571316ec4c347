"""The score of the checks on the catalogue, as measured last and committed.

`core mutants --record` measures it anew. It counts for the catalogue and the checks it was measured with: after a
change of either, a certificate cannot pass before it is measured again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from conformance import identity
from conformance.certificate.records import Mutation
from conformance.mutants.score import Fate
from core.plugin.identity import digest_of, hashes

PATH = Path(__file__).parent / "score.json"

_JUDGES = ("bounds", "case", "draw", "exam", "judge", "ranks", "row_exam", "target")


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`checks_sha256`: of the files that judge."""

    checks_sha256: str
    score: Mutation


def checks_sha256() -> str:
    """Of everything that decides about a kernel: cases, oracles, bounds and the judge."""
    here = identity.HERE
    judges = [here / f"{name}.py" for name in _JUDGES]
    return digest_of(hashes(here, [*judges, *(here / "kernels").glob("*.py"), *(here / "oracle").glob("*.py")]))


def catalogue_sha256() -> str:
    """Of the files that hold the catalogue."""
    folder = PATH.parent
    return digest_of(hashes(folder, folder.glob("*.py")))


def score(fates: Iterable[Fate]) -> Mutation:
    """What is recorded of the fates of the whole catalogue. Wrong kernels and cheats count together."""
    fates = list(fates)
    wrong = [f for f in fates if f.mutant.kind != "right"]
    right = [f for f in fates if f.mutant.kind == "right"]
    return Mutation(
        catalogue_sha256(),
        len(wrong),
        sum(f.ok for f in wrong),
        len(right),
        sum(not f.ok for f in right),
        sum(f.cases for f in right),
    )


def write(made: Mutation) -> None:
    PATH.write_bytes(msgspec.json.format(msgspec.json.encode(Record(checks_sha256(), made))) + b"\n")


def read() -> Mutation | None:
    """The score, or None when there is none of this catalogue and these checks."""
    if not PATH.exists():
        return None
    record = msgspec.json.decode(PATH.read_bytes(), type=Record)
    current = (record.checks_sha256, record.score.catalogue_sha256) == (checks_sha256(), catalogue_sha256())
    return record.score if current else None
