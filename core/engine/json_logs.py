"""Logs for programs: one JSON object a line on standard error, tracebacks included."""

from __future__ import annotations

import logging
import sys
import traceback
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TextIO

import msgspec


class JsonFormatter(logging.Formatter):
    """A record as {time, level, logger, message}, with `traceback` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {"logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            entry["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        return json_line(record.levelname.lower(), entry)


def json_line(level: str, entry: dict[str, Any]) -> str:
    """`entry` after the time (UTC) and the level."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return msgspec.json.encode({"time": now, "level": level, **entry}).decode()


def log_as_json(stream: TextIO = sys.stderr) -> None:
    """From now on everything that is logged in this process, from warnings on, and what nobody caught."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    sys.excepthook = _log_uncaught


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger("core").critical("uncaught error", exc_info=(kind, error, trace))
