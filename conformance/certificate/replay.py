"""Level 2: judges the outputs in a bundle again, from the seed alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.torch import load_file

from conformance import engine
from conformance.case import Case, Finding
from conformance.certificate import issue
from conformance.child import is_drawn, sample_name
from conformance.draw import Draw, case_seed
from conformance.exam import rejudge
from conformance.kernels import all_exams
from conformance.row_exam import Outputs

if TYPE_CHECKING:
    from conformance.certificate.records import Outcome
    from conformance.certificate.verify import Bundle


def replay(bundle: Bundle) -> Iterator[str]:
    """What is wrong with the samples. A bundle without any has nothing to show, which is wrong too."""
    root = bytes.fromhex(bundle.predicate.seed.root)
    kept = [outcome for outcome in bundle.outcomes if outcome.sample]
    if not kept:
        yield "no outputs were kept, so nothing can be judged again"
    known = {case.name: case for exam in all_exams().values() for case in exam.cases()}
    known |= {case.name: case for case in engine.cases()}
    for outcome in bundle.outcomes:
        case = known.get(outcome.case)  # what a plugin claims beyond is known where the plugin is
        if case is None or outcome.status != "pass":
            continue
        if outcome.sample:
            yield from _judge(bundle, outcome, case, root)
        elif case.row == engine.ROW and engine.can_rejudge(case):
            yield f"{outcome.case}: its outputs were not kept"


def _judge(bundle: Bundle, outcome: Outcome, case: Case, root: bytes) -> Iterator[str]:
    try:
        outputs = load_file(bundle.folder / issue.SAMPLES / sample_name(outcome.task))
    except SafetensorError as error:
        yield f"{outcome.case}: its sample cannot be read: {error}"
        return
    if not is_drawn(root, outcome.task, outputs):
        yield f"{outcome.case}: its outputs were not drawn to be kept"
    for finding in _findings(case, outputs, root):
        if not finding.ok:
            yield f"{outcome.case}: check {finding.check} of {finding.output}: {finding.detail}"


def _findings(case: Case, outputs: Outputs, root: bytes) -> list[Finding]:
    if case.row == engine.ROW:
        return engine.rejudge(case, root, outputs) if engine.can_rejudge(case) else []
    exam = all_exams()[case.row]
    return rejudge(exam, case, exam.inputs(case, Draw(case_seed(root, case.name))), outputs)
