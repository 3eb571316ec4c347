"""What the server process says on standard error: for people (a plan in tables, no line for each request), or for
programs (--log-format json: one object a line, also for each request, with its id). Prompts and outputs are never told.
"""

import sys
from collections.abc import Callable, Sequence
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


class Lines:
    """Lines on standard error. A disk that is full, or a reader that is gone, ends no server and no request.

    tell       a line that says how many entries were lost: it comes before the next one that can be written
    num_lost   since one last was
    """

    def __init__(self, tell: Callable[[int], str]) -> None:
        self._tell = tell
        self.num_lost = 0

    def write(self, line: str) -> None:
        try:
            if self.num_lost:
                print(self._tell(self.num_lost), file=sys.stderr)  # noqa: T201
            print(line, file=sys.stderr, flush=True)  # noqa: T201
            self.num_lost = 0
        except OSError:
            self.num_lost += 1


class TextLog:
    """For people."""

    def __init__(self) -> None:
        self._lines = Lines(lambda num: f"warning: {num} lines before this one could not be written")

    def plan(self, info: ReadyInfo, sampling: Sequence[Row]) -> None:
        try:
            log_plan(info.plan, info.kernels, info.notes)
            if sampling:
                log.print(table("Where a request says nothing", ("what", "value", "decided by"), sampling))
        except OSError:
            self._lines.num_lost += 1

    def serving(self, name: str, address: str) -> None:
        self._lines.write(f"{name} is served at {address}")

    def warn(self, message: str) -> None:
        self._lines.write(f"warning: {message}")

    def fail(self, message: str) -> None:
        self._lines.write(f"error: {message}")

    def request(self, entry: Entry) -> None:
        """Not told: metrics count them."""


class JsonLog:
    """For programs. Also turns the process's other logs into JSON."""

    def __init__(self) -> None:
        log_as_json()
        self._lines = Lines(lambda num: json_line("warning", {"event": "log_lost", "entries": num}))

    def plan(self, info: ReadyInfo, sampling: Sequence[Row]) -> None:
        entry = {"plan": info.plan, "kernels": info.kernels, "notes": info.notes, "sampling": sampling}
        self._lines.write(json_line("info", {"event": "plan", **entry}))

    def serving(self, name: str, address: str) -> None:
        self._lines.write(json_line("info", {"event": "serving", "model": name, "address": address}))

    def warn(self, message: str) -> None:
        self._lines.write(json_line("warning", {"event": "warning", "message": message}))

    def fail(self, message: str) -> None:
        self._lines.write(json_line("error", {"event": "failed", "message": message}))

    def request(self, entry: Entry) -> None:
        if entry.path in PROBES and entry.status < 400:
            return
        fields: dict[str, Any] = asdict(entry)
        fields["duration_s"] = round(entry.duration_s, 6)
        self._lines.write(json_line("error" if entry.status >= 500 else "info", {"event": "request", **fields}))


def open_log(form: Format) -> Log:
    return JsonLog() if form == "json" else TextLog()
