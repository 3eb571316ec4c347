"""Times the cases of a device: right first, then fast, then still right.

What makes a number not count: results that are wrong before or after timing, a time that the machine cannot reach
(the clock or the kernel cheats), content that was seen before being faster (results are remembered), and a machine
that was not quiet.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from math import ceil

from conformance import identity
from conformance.draw import Draw, case_seed
from conformance.exam import rejudge
from conformance.kernels import all_exams
from conformance.speed.capture import Captured
from conformance.speed.cases import Timed, timed
from conformance.speed.probe import Ceilings, ceilings, control
from conformance.speed.record import SCHEMA, WRONG, Measured, SpeedRecord
from conformance.speed.timing import Times, measure
from conformance.target import Target
from core.errors import ConfigError
from core.kernels.cost import COSTS

TRIES = 5
POOL_BYTES = 64 * 2**20
MAX_POOL = 3
REMEMBERED = 0.9
"""Part of the time below which calls with content that was seen before are suspect."""

IMPOSSIBLE = 0.95
"""Part of the least possible time that a time may not be under. Small cases live in caches: they may be."""


def record(
    target: Target, dtype: str, progress: Callable[[int, int], None], cases: Sequence[Timed] = ()
) -> SpeedRecord:
    """Measure the cases (none given: all) in `dtype`, with inputs that nobody knows before.

    Raises: ConfigError when the device does not have the dtype.
    """
    if dtype not in target.facts.dtypes:
        raise ConfigError(f"dtype {dtype} is not among {', '.join(target.facts.dtypes)} of {target.facts.name}")
    probed, peaks = ceilings(target, dtype), target.facts.peaks
    stated = getattr(peaks, dtype), peaks.bytes_per_s
    limits = probed.held_to(*stated)
    cases = cases or list(timed(dtype))
    root = secrets.token_bytes(16)
    found = []
    for number, case in enumerate(cases):
        progress(number, len(cases))
        found.append(_one(target, case, limits, root))
    progress(len(cases), len(cases))
    facts = target.facts
    return SpeedRecord(
        SCHEMA, facts.name, facts.arch, dtype, identity.environment(),
        probed.flops_per_s, probed.bytes_per_s, probed.launch_s, found, *stated,
    )  # fmt: skip


def _one(target: Target, timed_case: Timed, limits: Ceilings, root: bytes) -> Measured:
    """One case with the best provider that takes it."""
    case = timed_case.case
    need = all_exams()[case.row].need(case)
    refusals = {provider: target.refusal(case.row, provider, need) for provider in target.providers(case.row)}
    provider = next((name for name, refusal in refusals.items() if refusal is None), None)
    if provider is None:
        return _untimed(timed_case, "", f"not supported: {'; '.join(filter(None, refusals.values()))}")
    try:
        return _timed(target, timed_case, provider, limits, root)
    except Exception as error:  # noqa: BLE001  whatever a kernel under examination raises is its result
        return _untimed(timed_case, provider, f"{WRONG}: {type(error).__name__}: {error}")


def _untimed(timed_case: Timed, provider: str, trouble: str) -> Measured:
    case, (flops, moved) = timed_case.case, COSTS[timed_case.case.row](timed_case.sizes)
    return Measured(case.name, case.row, timed_case.kind, provider, 0.0, 0.0, 0.0, flops, moved, 0.0, trouble)


def _timed(target: Target, timed_case: Timed, provider: str, limits: Ceilings, root: bytes) -> Measured:
    case = timed_case.case
    exam = all_exams()[case.row]
    flops, moved = COSTS[case.row](timed_case.sizes)
    num = min(MAX_POOL, max(2, ceil(POOL_BYTES / max(moved, 1))))
    drawn = [exam.inputs(case, Draw(case_seed(root, case.name, part))) for part in range(num)]
    pool = [Captured(exam, case, target, provider, inputs) for inputs in drawn]
    trouble = _wrong(timed_case, pool[0], "before")
    alike = [Captured(exam, case, target, provider, drawn[0]) for _ in range(num)]
    times, same = _quietly(target, pool, alike)
    pool[0].outputs = pool[0].again()
    trouble = trouble or _wrong(timed_case, pool[0], "after")
    least = limits.least_s(flops, moved)
    remembered = same.high < REMEMBERED * times.low
    if not trouble and not (times.stable and same.stable):
        trouble = f"the machine was not quiet: its control varies by {max(times.cv, same.cv):.0%}"
        trouble += "; maybe content that was seen before is faster" if remembered else ""
    if not trouble and remembered:
        trouble = f"content that was seen before takes {same.median / times.median:.2f} of the time"
    if not trouble and moved > POOL_BYTES and times.high < IMPOSSIBLE * least:
        trouble = f"{times.median * 1e6:.0f} us is less than the {least * 1e6:.0f} us that the device can reach"
    return Measured(
        case.name, case.row, timed_case.kind, pool[0].provider, times.median, times.low, times.high,
        flops, moved, least / times.median, trouble,
    )  # fmt: skip


def _quietly(target: Target, pool: list[Captured], alike: list[Captured]) -> tuple[Times, Times]:
    """Times of calls with different content, and with the same; measured again while the machine is not quiet."""
    beside = control(target)
    for _ in range(TRIES):
        times, same = (measure(target.device, [c.call for c in calls], beside) for calls in (pool, alike))
        if times.stable and same.stable:
            break
    return times, same


def _wrong(timed_case: Timed, captured: Captured, when: str) -> str:
    exam = all_exams()[timed_case.case.row]
    bad = [f for f in rejudge(exam, timed_case.case, captured.inputs, captured.outputs) if not f.ok]
    return f"{WRONG} {when} it was timed: check {bad[0].check}, {bad[0].detail}" if bad else ""
