"""Outcomes as JUnit XML, which build servers show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from conformance.certificate.records import Declared, Outcome
from conformance.certificate.sections import Extra

_TAGS = {"fail": "failure", "error": "error", "waived": "skipped"}


@dataclass(frozen=True)
class _Entry:
    """`tag`: "failure", "error", "skipped", or empty for what passed."""

    kind: str
    name: str
    seconds: float = 0.0
    tag: str = ""
    message: str = ""


def write(path: Path, declared: Iterable[Declared], outcomes: Iterable[Outcome], extra: Extra | None) -> None:
    """One test case per case and provider, one per case of ONNX, and one per timed case.

    What is unsupported, waived or left out is skipped, with its reason.
    """
    entries = [*_of_cases(declared, outcomes), *(_of_extra(extra) if extra else ())]
    count = Counter(entry.tag for entry in entries)
    suite = ElementTree.Element(
        "testsuite",
        name="conformance",
        tests=str(len(entries)),
        failures=str(count["failure"]),
        errors=str(count["error"]),
        skipped=str(count["skipped"]),
        time=f"{sum(entry.seconds for entry in entries):.3f}",
    )
    for entry in entries:
        time = f"{entry.seconds:.3f}"
        made = ElementTree.SubElement(suite, "testcase", classname=entry.kind, name=entry.name, time=time)
        if entry.tag:
            ElementTree.SubElement(made, entry.tag, message=_clean(entry.message))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _of_cases(declared: Iterable[Declared], outcomes: Iterable[Outcome]) -> Iterator[_Entry]:
    for o in outcomes:
        yield _Entry(f"{o.row}.{o.provider}", o.case, o.seconds, _TAGS.get(o.status, ""), o.message)
    for d in declared:
        if d.unsupported:
            yield _Entry(f"{d.row}.{d.provider}", d.case, tag="skipped", message=d.unsupported)


def _of_extra(extra: Extra) -> Iterator[_Entry]:
    tags = {"device": "", "failed": "failure"}
    for case in extra.onnx.cases:
        yield _Entry("onnx", case.title, tag=tags.get(case.fate, "skipped"), message=f"{case.fate}: {case.message}")
    wrong = {m.case for m in extra.speed.wrong}
    for m in extra.speed.cases:
        tag = "failure" if m.case in wrong else "skipped" if m.trouble else ""
        yield _Entry(f"speed.{m.provider}", m.case, m.seconds, tag, m.trouble)


def _clean(text: str) -> str:
    """Without what XML cannot hold."""
    return "".join(c if c.isprintable() else " " for c in text)
