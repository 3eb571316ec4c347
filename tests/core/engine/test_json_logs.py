"""Logs of a process that logs in JSON: every line is an object, also those that the process did not mean to write."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import logging
from core.engine.json_logs import json_line, log_as_json

log_as_json()
print(json_line("info", {"event": "one"}), flush=True)
logging.getLogger("some.library").info("not told")
logging.getLogger("some.library").warning("two words: %s", "größer\\nnext")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("core").exception("a step failed")
raise KeyError("nobody caught this")
"""


def test_every_line_is_an_object() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert json.loads(done.stdout)["event"] == "one"
    warning, failed, uncaught = map(json.loads, done.stderr.splitlines())
    assert (warning["level"], warning["logger"]) == ("warning", "some.library")
    assert warning["message"] == "two words: größer\nnext"
    assert failed["message"] == "a step failed"
    assert failed["traceback"].endswith("ZeroDivisionError: division by zero\n")
    assert uncaught["level"] == "critical"
    assert "nobody caught this" in uncaught["traceback"]
    assert all(line["time"].endswith("+00:00") for line in (warning, failed, uncaught))
