"""Runs one case on one provider's kernel, and judges it.

The order matters: results are fetched before any expected value exists, so a kernel has nothing to copy from. Two
draws of inputs go through the same memory, so a kernel that remembers inputs by their address is found out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from conformance.case import Case, Finding, Result
from conformance.draw import Draw, case_seed
from conformance.judge import judge, same_bits
from conformance.row_exam import Inputs, Outputs, RowExam
from conformance.target import Bench, Target, host_target
from core.kernels.bind import REFERENCE

NUM_DRAWS = 2


def examine(exam: RowExam, case: Case, target: Target, provider: str, root: bytes) -> tuple[Result, Outputs]:
    """The result of a case, and the outputs of its first draw. `root` is the seed of the run.

    An exception of the kernel is a failure of status "error", told with its type and message.
    """
    need = exam.need(case)
    refusal = exam.refusal(case, target, provider)
    if refusal is not None:
        return Result(case.name, provider, "unsupported", refusal), {}
    began = time.monotonic()
    bench = Bench(target, exam.row, provider, need)
    findings: list[Finding] = []
    kept: Outputs = {}
    try:
        for part in range(NUM_DRAWS):
            inputs = exam.inputs(case, Draw(case_seed(root, case.name, part)))
            outputs, found = _once(exam, case, inputs, bench, last=part == NUM_DRAWS - 1)
            findings += found
            kept = kept or outputs
    except Exception as error:  # noqa: BLE001  whatever a kernel under examination raises is its result
        result = Result(case.name, provider, "error", f"{type(error).__name__}: {error}", tuple(findings))
        return replace(result, seconds=time.monotonic() - began), {}
    bad = [f for f in findings if not f.ok]
    message = "; ".join(f"{f.check} {f.output}: {f.ratio:.3g} of what is allowed, {f.detail}" for f in bad[:4])
    status = "fail" if bad else "pass"
    seconds = time.monotonic() - began
    return Result(case.name, bench.provider, status, message, _worst(findings), seconds), kept


def _once(exam: RowExam, case: Case, inputs: Inputs, bench: Bench, *, last: bool) -> tuple[Outputs, list[Finding]]:
    outputs = exam.call(case, inputs, bench)
    findings = bench.check_memory(exam.may_change)
    for _ in range(case.get("repeats", exam.repeats) - 1 if last else 0):
        again = exam.call(case, inputs, bench)
        findings += [same_bits(f"{name}, repeated", outputs[name], again[name]) for name in outputs]
    if last:
        findings += exam.relations(case, inputs, outputs, bench)
    findings += rejudge(exam, case, inputs, outputs)
    return outputs, findings


def rejudge(exam: RowExam, case: Case, inputs: Inputs, outputs: Outputs) -> list[Finding]:
    """Checks A to D of outputs that may come from elsewhere: needs no device."""
    eager: Outputs = {}
    expected = exam.expect(case, inputs, outputs)
    if any(e.bits is None and e.rms for e in expected.values()):
        need = replace(exam.need(case), batch_invariant=False)  # to compare with, ours need not be that
        eager = exam.call(case, inputs, Bench(host_target(), exam.row, REFERENCE, need))
    findings = []
    for name, wanted in expected.items():
        if name not in outputs:
            findings.append(Finding("A", name, float("inf"), "there is no such result"))
        else:
            findings += judge(name, wanted, outputs[name], eager.get(name))
    return findings


def _worst(findings: list[Finding]) -> tuple[Finding, ...]:
    """Of each check and output, the finding with the greatest ratio."""
    worst: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        key = finding.check, finding.output
        if key not in worst or finding.ratio > worst[key].ratio:
            worst[key] = finding
    return tuple(worst.values())


def pairs(exam: RowExam, target: Target) -> Iterator[tuple[Case, str]]:
    """Every case of a row with every provider of it on the target: the mustpass ones, then those that are claimed."""
    for provider in target.providers(exam.row):
        seen = set()
        claimed = [i.support for i in target.implementations if i.row == exam.row and i.provider == provider]
        for case in [*exam.cases(), *(case for support in claimed for case in exam.claims(support))]:
            if case.name not in seen:
                seen.add(case.name)
                yield case, provider
