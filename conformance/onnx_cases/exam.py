"""Puts one case to a device, and judges it as the onnx project's own runner does.

A result's provider is the device's where the binder recorded its kernels for every row that ran, and "reference" where
any of them was ours. Integers must be the same, float16 has the room that bfloat16 has, and check E holds
as for every other case.
"""

from __future__ import annotations

import time

import torch

from conformance.case import Finding, Result
from conformance.draw import exact
from conformance.onnx_cases.fates import title_of
from conformance.onnx_cases.load import OnnxCase, load
from conformance.onnx_cases.map import ADAPTERS
from conformance.onnx_cases.stand import Adapter, Stand
from conformance.target import Target
from core.kernels.bind import REFERENCE
from core.kernels.table import TABLE
from core.plugin.facts import Need


def cases() -> tuple[str, ...]:
    """Names of the cases that the map puts to a row."""
    return tuple(ADAPTERS)


def examine(name: str, target: Target) -> Result:
    """The result of a case; the message of a pass says why it does not count. Raises: ConfigError without onnx."""
    case, adapter = load()[name], ADAPTERS[name]
    title = title_of(case.operator, name)
    provider, need, refusal = _choose(case, adapter, target)
    if need.dtype is not None and need.dtype not in target.facts.dtypes:
        return Result(title, provider, "unsupported", refusal)
    began = time.monotonic()
    try:
        stand = Stand(target, adapter.row, provider, need)
        outputs = adapter.call(case, stand)
        findings = [*judge(case, outputs), *stand.check_memory()]
    except Exception as error:  # noqa: BLE001  whatever a kernel under examination raises is its result
        message = f"{type(error).__name__}: {error}"
        return Result(title, provider, "error", message, seconds=time.monotonic() - began)
    seconds = time.monotonic() - began
    references = stand.references
    provider = REFERENCE if references else stand.provider
    bad = [f for f in findings if not f.ok]
    shown = tuple(f for f in findings if f.check == "A" or not f.ok)
    if bad:
        message = "; ".join(f"{f.check} {f.output}: {f.ratio:.3g} of what is allowed, {f.detail}" for f in bad[:4])
        return Result(title, provider, "fail", message, shown, seconds)
    message = f"by reference: {', '.join(references)}" if references else ""
    return Result(title, provider, "pass", f"{message} ({refusal})" if refusal else message, shown, seconds)


def is_native(result: Result) -> bool:
    """Whether it counts: passed, by the device's own kernels."""
    return result.status == "pass" and result.provider != REFERENCE


def _choose(case: OnnxCase, adapter: Adapter, target: Target) -> tuple[str, Need, str]:
    """The first provider that takes the case, in one of the forms it has; else the reference, and why nobody does."""
    needs, reasons = list(adapter.needs(case)), []
    for provider in target.providers(adapter.row):
        taken = next((need for need in needs if target.refusal(adapter.row, provider, need) is None), None)
        reason = _lossy(target, adapter.row, provider, taken) if taken else None
        if taken and not reason:
            return provider, taken, ""
        reasons.append(reason or target.refusal(adapter.row, provider, needs[0]) or "")
    return REFERENCE, needs[0], "; ".join(reasons)


def _lossy(target: Target, row: str, provider: str, need: Need) -> str:
    """Why a pool does not take cases whose tolerance knows nothing of storage in fewer bits; empty when it does."""
    if TABLE[row].bundle != "kv":
        return ""
    layout = target.kernels(row, provider, need).bind("kv_layout", need)(
        num_kv_heads=1, head_size=need.head_size, page_tokens=need.page_tokens, dtype=need.dtype
    )
    return f"the pool of {provider} keeps numbers to {layout.kv_error:.2g} of the largest" if layout.kv_error else ""


def judge(case: OnnxCase, outputs: dict[str, torch.Tensor]) -> list[Finding]:
    """Check A of every output. Source: onnx/backend/test/runner/__init__.py, assert_similar_outputs."""
    return [_close(case, name, wanted, outputs.get(name)) for name, wanted in case.outputs.items()]


def _close(case: OnnxCase, name: str, wanted: torch.Tensor, got: torch.Tensor | None) -> Finding:
    if got is None or got.shape != wanted.shape or got.dtype != wanted.dtype:
        what = "nothing" if got is None else f"{got.dtype} {tuple(got.shape)}"
        return Finding("A", name, float("inf"), f"{what}, not {wanted.dtype} {tuple(wanted.shape)}")
    if not wanted.dtype.is_floating_point:
        num_wrong = int((got != wanted).sum())
        return Finding("A", name, float("inf") if num_wrong else 0.0, f"{num_wrong} of {wanted.numel()} differ")
    y, value = torch.from_numpy(exact(got)), torch.from_numpy(exact(wanted))
    same = (y == value) | (y.isnan() & value.isnan())
    ratio = (
        ((y - value).abs() / (case.atol + case.rtol_of(wanted.dtype) * value.abs()))
        .where(~same, 0)
        .nan_to_num(nan=float("inf"), posinf=float("inf"))
    )
    worst = int(ratio.argmax())
    return Finding("A", name, float(ratio.flatten()[worst]), f"{y.flatten()[worst]}, not {value.flatten()[worst]}")
