"""A trace of steps, kernels and host work, in Chrome's trace format: for chrome://tracing and Perfetto.

Tracks: the engine's thread (turn > schedule, collect, update; encode), the device's launch thread (launch > pack, and
every bound kernel by its row; kernels before the first step load weights), and steps from launch to retirement. All
times are the host's: on a device that works asynchronously a kernel's span is the time to launch it. Calls that a
device has captured in a graph are seen only while it captures. Of several ranks, rank 0 is seen.

The file is a complete JSON array whenever nobody writes to it: each write replaces the closing bracket, so that a
trace survives whatever ends the process. It is bounded by MAX_EVENTS, and says so where it stops.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import msgspec

from core.clock import Clock, SystemClock
from core.errors import ConfigError

if TYPE_CHECKING:
    from core.engine.flight import Flight
    from core.engine.step import StepOutput, StepPlan
    from core.kernels.bind import Tap

P = ParamSpec("P")
R = TypeVar("R")

MAX_EVENTS = 500_000
ENGINE, DEVICE = 1, 2  # tracks
_WRITE_S = 0.5
_WRITE_EVENTS = 2_000
_END = b"\n]\n"
_NOTE = "times are the host's: where the device is asynchronous, a kernel's span is the time to launch it"
_FULL = f"the trace is full: it holds {MAX_EVENTS} events, later ones are left out"
_log = logging.getLogger(__name__)


class Span(NamedTuple):
    """Something that took time. `number` makes it a step, which may overlap others."""

    name: str
    track: int
    start_s: float
    end_s: float
    args: dict[str, Any] | None = None
    number: int | None = None


class Profile:
    """Wraps the parts of one engine, and writes what they took to `path`.

    Spans are added from the engine's and the device's thread; only the engine's thread writes.

    Raises: ConfigError when the file cannot be written.
    """

    def __init__(self, path: str, clock: Clock | None = None) -> None:
        self._now_s = (clock or SystemClock()).now_s
        self._origin_s = self._now_s()
        self._spans: deque[Span] = deque()
        self._in_flight: deque[Span] = deque()
        self._num_steps = 0
        self._room = MAX_EVENTS
        self._last_write_s = self._origin_s
        try:
            self._file: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        except OSError as error:
            raise ConfigError(
                f"profile is {path}: it cannot be written ({error.strerror}); name another file"
            ) from None
        self._end = os.pwrite(self._file, b"[", 0)
        self._write_events([_named("process_name", 0, "core"), _named("process_labels", 0, _NOTE)])
        self._write_events([_named("thread_name", ENGINE, "engine"), _named("thread_name", DEVICE, "device launches")])

    # Wrapping

    def timed(self, name: str, call: Callable[P, R], track: int = ENGINE) -> Callable[P, R]:
        """`call`, with a span for each call."""

        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            start_s = self._now_s()
            try:
                return call(*args, **kwargs)
            finally:
                self._add(Span(name, track, start_s, self._now_s()))

        return run

    def tap(self, inner: Tap | None) -> Tap:
        """For `KernelSet`: a span for each call of a kernel, around what `inner` makes of it."""
        return lambda row, kernel: self.timed(row, inner(row, kernel) if inner else kernel, DEVICE)

    def launching(self, launch: Callable[[StepPlan], Flight]) -> Callable[[StepPlan], Flight]:
        """Launches of steps: each is a span, and the start of a step."""

        def run(plan: StepPlan) -> Flight:
            self._num_steps += 1
            sizes = {"sequences": len(plan.rows), "tokens": plan.num_tokens, "draws": sum(plan.samples)}
            args = {"step": self._num_steps, **sizes}
            start_s = self._now_s()
            self._in_flight.append(Span("step", DEVICE, start_s, start_s, args, self._num_steps))
            try:
                return launch(plan)
            finally:
                self._add(Span("launch", DEVICE, start_s, self._now_s(), args))

        return run

    def collecting(self, collect: Callable[P, StepOutput]) -> Callable[P, StepOutput]:
        """Waits for steps: each is a span, and the end of the oldest step."""
        timed = self.timed("collect", collect)

        def run(*args: P.args, **kwargs: P.kwargs) -> StepOutput:
            try:
                return timed(*args, **kwargs)
            finally:
                if self._in_flight:
                    self._add(self._in_flight.popleft()._replace(end_s=self._now_s()))

        return run

    def dropped(self) -> None:
        """The steps in flight were given up."""
        while self._in_flight:
            self._add(self._in_flight.popleft()._replace(end_s=self._now_s()))

    def _add(self, span: Span) -> None:
        if self._room > 0:
            self._spans.append(span)

    # Writing

    def write(self, now: bool = False) -> None:
        """Write what has gathered, if it is much or old, or `now`. Call it outside of what is timed."""
        start_s = self._now_s()
        if not (now or len(self._spans) >= _WRITE_EVENTS or start_s - self._last_write_s >= _WRITE_S):
            return
        self._last_write_s = start_s
        spans = [self._spans.popleft() for _ in range(len(self._spans))]
        events = [event for span in spans for event in self._events(span)]
        if not events or self._room <= 0:
            return
        if len(events) >= self._room:
            events = [*events[: self._room], self._event(_FULL, "i", ENGINE, start_s, s="g")]
            _log.warning(_FULL)
        self._room -= len(events)
        self._write_events(events)
        self._add(Span("write trace", ENGINE, start_s, self._now_s()))

    def _events(self, span: Span) -> list[dict[str, Any]]:
        if span.number is not None:
            more = {"cat": "step", "id": span.number}
            begin = self._event(span.name, "b", span.track, span.start_s, args=span.args, **more)
            return [begin, self._event(span.name, "e", span.track, span.end_s, **more)]
        event = self._event(span.name, "X", span.track, span.start_s)
        event["dur"] = self._ns(span.end_s) / 1000 - event["ts"]
        if span.args:
            event["args"] = span.args
        return [event]

    def _event(self, name: str, phase: str, track: int, at_s: float, **more: Any) -> dict[str, Any]:
        return {"name": name, "ph": phase, "pid": 1, "tid": track, "ts": self._ns(at_s) / 1000, **more}

    def _ns(self, at_s: float) -> int:
        return round((at_s - self._origin_s) * 1e9)

    def _write_events(self, events: list[dict[str, Any]]) -> None:
        if self._file is None:
            return
        start = b",\n" if self._end > 1 else b"\n"
        data = start + b",\n".join(map(msgspec.json.encode, events))
        try:
            os.pwrite(self._file, data + _END, self._end)
        except OSError as error:
            self._room = 0
            _log.error("the trace cannot be written any more: %s", error)
        self._end += len(data)

    def close(self) -> None:
        """Write the rest."""
        if self._file is not None:
            self.write(now=True)
            os.close(self._file)
            self._file = None


def _named(kind: str, track: int, name: str) -> dict[str, Any]:
    key = "labels" if kind == "process_labels" else "name"
    return {"name": kind, "ph": "M", "pid": 1, "tid": track, "args": {key: name}}
