"""Outcomes as JUnit XML, which build servers show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.etree import ElementTree

from conformance.certificate.records import Declared, Outcome


def write(path: Path, declared: Iterable[Declared], outcomes: Sequence[Outcome]) -> None:
    """One test case per case and provider; what is unsupported or waived is skipped with its reason."""
    unsupported = [d for d in declared if d.unsupported]
    failed = [o for o in outcomes if o.status in ("fail", "error")]
    waived = [o for o in outcomes if o.status == "waived"]
    suite = ElementTree.Element(
        "testsuite",
        name="conformance",
        tests=str(len(outcomes) + len(unsupported)),
        failures=str(sum(o.status == "fail" for o in failed)),
        errors=str(sum(o.status == "error" for o in failed)),
        skipped=str(len(unsupported) + len(waived)),
        time=f"{sum(o.seconds for o in outcomes):.3f}",
    )
    for outcome in outcomes:
        entry = _entry(suite, outcome.row, outcome.case, outcome.provider, outcome.seconds)
        if outcome.status in ("fail", "error"):
            tag = "failure" if outcome.status == "fail" else "error"
            ElementTree.SubElement(entry, tag, message=_clean(outcome.message))
        elif outcome.status == "waived":
            ElementTree.SubElement(entry, "skipped", message=_clean(outcome.message))
    for one in unsupported:
        entry = _entry(suite, one.row, one.case, one.provider, 0.0)
        ElementTree.SubElement(entry, "skipped", message=_clean(one.unsupported))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _entry(suite: ElementTree.Element, row: str, case: str, provider: str, seconds: float) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=f"{row}.{provider}", name=case, time=f"{seconds:.3f}")


def _clean(text: str) -> str:
    """Without what XML cannot hold."""
    return "".join(c if c.isprintable() else " " for c in text)
