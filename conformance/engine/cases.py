"""Which cases there are for a whole engine, and which of them a device does not support."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.case import Case, Value
from conformance.engine.texts import INDUCTION, SMOLLM2, location, missing
from core.config import EngineConfig
from core.engine.build import describe
from core.errors import ConfigError, PluginError
from core.plugin.facts import DTYPES, DeviceFacts

ROW = "engine"

_KL: dict[str, dict[str, Value]] = {
    INDUCTION: {"num": 4, "length": 393},
    SMOLLM2: {"num": 2, "length": 120},
}
"""25 pages of 16 tokens each, the last one not full. Texts of the other model may be shorter."""

_SERVED: dict[str, dict[str, Value]] = {
    INDUCTION: {"num": 4, "length": 190, "drawn": 16},
    SMOLLM2: {"num": 2, "length": 80, "drawn": 8},
}
NUM_RANKS = 2


def cases() -> list[Case]:
    """Every case of a whole engine, the same for all devices."""
    return [*_induction(), *_smollm2()]


def _induction() -> Iterator[Case]:
    for dtype in DTYPES:
        yield from _numbers(INDUCTION, dtype)
        yield from _equivalences(INDUCTION, dtype)
        for way in ("batch", "positions", "chunks", "prefix"):
            yield Case.of(ROW, "invariant", model=INDUCTION, dtype=dtype, way=way, num=4, length=190)


def _smollm2() -> Iterator[Case]:
    """Fewer: what differs from the other model is the size of things."""
    for dtype in DTYPES:
        yield next(_numbers(SMOLLM2, dtype))
    yield from [*_numbers(SMOLLM2, "bfloat16")][1:]
    yield from (case for case in _equivalences(SMOLLM2, "bfloat16") if case.family in ("prefix", "batch", "compiled"))


def _numbers(model: str, dtype: str) -> Iterator[Case]:
    for way in ("prompt", "decode"):
        yield Case.of(ROW, "kl", model=model, dtype=dtype, way=way, **_KL[model])
    served = {**_SERVED[model], "drawn": 48 if model == INDUCTION else 16}
    yield Case.of(ROW, "greedy", model=model, dtype=dtype, **served)


def _equivalences(model: str, dtype: str) -> Iterator[Case]:
    served = {"model": model, "dtype": dtype, **_SERVED[model]}
    for chunk in ("one", "page-1", "page", "page+1"):
        yield Case.of(ROW, "chunks", **served, chunk=chunk)
    for cached in (False, True):
        yield Case.of(ROW, "preempt", **served, cached=cached)
    for family in ("prefix", "batch", "positions", "depth", "ranks", "compiled", "drafts"):
        yield Case.of(ROW, family, **served)


def refusal(case: Case, facts: DeviceFacts) -> str | None:
    """Why a device does not support a case, known before anything runs; None when it does."""
    if case["dtype"] not in facts.dtypes:
        return f"dtype {case['dtype']} is not among {', '.join(facts.dtypes)}"
    if not facts.uses_weights:
        return f"device {facts.name} computes nothing"
    if case.family == "ranks" and facts.accelerator and facts.count < NUM_RANKS:
        return f"{NUM_RANKS} ranks: this machine has {facts.count} {facts.name} device"
    if case.family == "depth" and facts.accelerator and facts.max_depth < 1:
        return f"device {facts.name} states that max_depth is {facts.max_depth}"
    if case.family == "compiled" and facts.shapes.dynamic:
        return f"device {facts.name} takes steps of any shape, so none are compiled"
    return missing(case["model"]) or _refused_by_plan(case, facts.name)


def _refused_by_plan(case: Case, device: str) -> str | None:
    """What can be seen once an engine is put together, without its weights."""
    if case.family not in ("invariant", "prefix", "preempt"):
        return None
    invariant = case.family == "invariant"
    config = EngineConfig(
        model=location(case["model"]), device=device, dtype=case["dtype"], batch_invariant=invariant, fallback="allow"
    )
    try:
        page = describe(config).page_tokens
    except (ConfigError, PluginError) as error:
        return str(error) if invariant else None  # if it is not for that mode, the case itself will tell
    if page >= case["length"] and not invariant:
        return f"device {device} has pages of {page} tokens: texts of {case['length']} never fill one"
    return None
