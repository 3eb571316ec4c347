"""Which of the two ways to XLA is installed where the tests run, and how its library counts compilations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from devices.xla.lowering import Way, choose, versions


def through_jax() -> bool:
    way = choose(versions())
    assert isinstance(way, Way), way
    return way.extension == "torchax"


def counter_of_compilations() -> Callable[[], int]:
    """How many there were so far."""
    if not through_jax():
        from torch_xla.debug.metrics import counter_value

        return lambda: counter_value("UncachedCompile") or 0
    import jax.monitoring

    compiled: list[str] = []

    def listen(event: str, seconds: float, **more: Any) -> None:
        if "compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    return lambda: len(compiled)
