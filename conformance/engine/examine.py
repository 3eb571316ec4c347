"""Runs one case of a whole engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from conformance.case import Case, Finding, Result
from conformance.draw import case_seed
from conformance.engine.numbers import greedy, kl, rejudge_kl
from conformance.engine.rig import CPU, Rig
from conformance.engine.steps import compiled, invariant
from conformance.engine.texts import INDUCTION
from conformance.engine.ways import WAYS, equal
from conformance.row_exam import Outputs

TIMEOUT_TIMES = 5
"""A case of a whole engine may take so much longer than one of a kernel."""

_FAMILIES: dict[str, Callable[[Rig], list[Finding]]] = {
    "greedy": greedy,
    "compiled": compiled,
    "invariant": invariant,
    **dict.fromkeys(WAYS, equal),
}


def examine(case: Case, device: str, root: bytes) -> tuple[Result, Outputs]:
    """The result of a case that the device supports, and what is kept of family "kl". `root` is the seed of the run.

    An exception of the engine is a failure of status "error", told with its type and message.
    """
    began, threads = time.monotonic(), torch.get_num_threads()
    seed, kept = case_seed(root, case.name), Outputs()
    try:
        with torch.inference_mode():
            rig = Rig.of(case, device, seed)
            if case.family == "kl":
                findings, kept = kl(rig, seed)
            else:
                findings = _FAMILIES[case.family](rig)
        result = Result(case.name, device, "pass", "", tuple(findings))
    except Exception as error:  # noqa: BLE001  whatever a device under examination raises is its result
        result = Result(case.name, device, "error", f"{type(error).__name__}: {error}")
    finally:
        torch.set_num_threads(threads)  # engines set how many they take
    bad = [f for f in result.findings if not f.ok]
    if bad:
        message = "; ".join(f"{f.check} {f.output}: {f.ratio:.3g} of what is allowed, {f.detail}" for f in bad[:4])
        result = replace(result, status="fail", message=message)
    return replace(result, seconds=time.monotonic() - began), kept


def can_rejudge(case: Case) -> bool:
    """Whether what is kept of a case suffices to judge it again: of the model that is in this repository."""
    return case.family == "kl" and bool(case["model"] == INDUCTION)


def rejudge(case: Case, root: bytes, kept: Outputs) -> list[Finding]:
    """Findings about what was kept of such a case, on the cpu device. Nothing of the device under examination runs."""
    seed, threads = case_seed(root, case.name), torch.get_num_threads()
    try:
        with torch.inference_mode():
            return rejudge_kl(Rig.of(case, CPU, seed), seed, kept)
    finally:
        torch.set_num_threads(threads)
