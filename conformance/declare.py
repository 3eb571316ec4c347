"""What will be run on a device, said before anything runs: nothing can turn out unsupported afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from conformance import engine, mustpass
from conformance.certificate.records import Declared
from conformance.exam import pairs
from conformance.kernels import all_exams
from conformance.target import Target


def declare(target: Target, level: str, only: str = "*") -> Iterator[Declared]:
    """Every case of a level, with every provider of its kernel on the target, and what the providers claim beyond.

    Cases of a whole engine have the device itself as their provider.

    only   a pattern of case names, as a shell has them
    """
    names = set(mustpass.names(level))
    everything = set(mustpass.names("kernel"))
    claimed = level != "quick"
    for row, exam in all_exams().items():
        for case, provider in pairs(exam, target):
            wanted = case.name in names or (claimed and case.name not in everything)
            if wanted and fnmatchcase(case.name, only):
                refusal = exam.refusal(case, target, provider)
                yield Declared(row, case.name, provider, refusal or "")
    for case in engine.cases():
        if case.name in names and fnmatchcase(case.name, only):
            yield Declared(engine.ROW, case.name, target.facts.name, engine.refusal(case, target.facts) or "")
