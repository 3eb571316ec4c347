"""What the server process says on standard error: for people (a plan in tables, no line for each request), or for
programs (--log-format json: one object a line, also for each request, with its id). Prompts and outputs are never told.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Literal, Protocol

from core.engine.front import ReadyInfo
from core.engine.json_logs import json_line, log_as_json
from server.door import Entry
from server.show import log, log_plan, table

PROBES = ("/health", "/live", "/ping", "/metrics")
"""Asked for again and again; told only when they fail."""

Format = Literal["text", "json"]
Row = tuple[str, str, str]


class Log(Protocol):
    """The events of a server's life."""

    def plan(self, info: ReadyInfo, sampling: Sequence[Row]) -> None:
        """What was decided, and what requests get that leave it out."""

    def serving(self, name: str, address: str) -> None:
        """It listens."""

    def warn(self, message: str) -> None:
        """Something that an operator should know."""

    def fail(self, message: str) -> None:
        """Why it ends."""

    def request(self, entry: Entry) -> None:
        """A request is done."""


class TextLog:
    """For people."""

    def plan(self, info: ReadyInfo, sampling: Sequence[Row]) -> None:
        with suppress(OSError):
            log_plan(info.plan, info.kernels, info.notes)
            if sampling:
                log.print(table("Where a request says nothing", ("what", "value", "decided by"), sampling))

    def serving(self, name: str, address: str) -> None:
        _print(f"{name} is served at {address}")

    def warn(self, message: str) -> None:
        _print(f"warning: {message}")

    def fail(self, message: str) -> None:
        _print(f"error: {message}")

    def request(self, entry: Entry) -> None:
        """Not told: metrics count them."""


class JsonLog:
    """For programs. Also turns the process's other logs into JSON."""

    def __init__(self) -> None:
        log_as_json()

    def plan(self, info: ReadyInfo, sampling: Sequence[Row]) -> None:
        entry = {"plan": info.plan, "kernels": info.kernels, "notes": info.notes, "sampling": sampling}
        _print(json_line("info", {"event": "plan", **entry}))

    def serving(self, name: str, address: str) -> None:
        _print(json_line("info", {"event": "serving", "model": name, "address": address}))

    def warn(self, message: str) -> None:
        _print(json_line("warning", {"event": "warning", "message": message}))

    def fail(self, message: str) -> None:
        _print(json_line("error", {"event": "failed", "message": message}))

    def request(self, entry: Entry) -> None:
        if entry.path in PROBES and entry.status < 400:
            return
        fields: dict[str, Any] = asdict(entry)
        fields["duration_s"] = round(entry.duration_s, 6)
        _print(json_line("error" if entry.status >= 500 else "info", {"event": "request", **fields}))


def open_log(form: Format) -> Log:
    return JsonLog() if form == "json" else TextLog()


class _Lost:
    """How many entries could not be written since one last was."""

    num = 0


def _print(line: str) -> None:
    """A disk that is full, or a reader that is gone, ends no server and no request: what was lost is told later."""
    try:
        if _Lost.num:
            print(json_line("warning", {"event": "log_lost", "entries": _Lost.num}), file=sys.stderr)  # noqa: T201
        print(line, file=sys.stderr, flush=True)  # noqa: T201
        _Lost.num = 0
    except OSError:
        _Lost.num += 1
