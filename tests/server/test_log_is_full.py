"""Logs on a full disk: the server starts, answers, and keeps its clients' connections."""

import errno
import io
import socket
import subprocess
from pathlib import Path

import httpx
import pytest
from processes import CORE
from test_failure import within

from server.logs import Format, JsonLog, TextLog


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.ConnectError:
        return False


class Full(io.StringIO):
    """Takes nothing while it is full."""

    full = True

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


@pytest.mark.parametrize(
    ("form", "told"),
    [("json", '"event":"log_lost","entries":2'), ("text", "warning: 2 lines before this one could not be written")],
)
def test_what_was_lost_is_told(form: Format, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process's other logs stay as the tests have them."""
    monkeypatch.setattr("server.logs.log_as_json", lambda: None)
    file = Full()
    monkeypatch.setattr("sys.stderr", file)
    log = TextLog() if form == "text" else JsonLog()
    log.warn("first")
    log.fail("second")
    file.full = False
    log.warn("third")
    log.warn("fourth")
    lost, third, fourth = file.getvalue().splitlines()
    assert told in lost
    assert "third" in third
    assert "fourth" in fourth


@pytest.mark.parametrize("form", ["json", "text"])
def test_log_is_full(form: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    args = (CORE, "serve", "smollm2", "--device", "null", "--port", str(port), "--log-format", form)
    url = f"http://127.0.0.1:{port}"
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(args, stderr=full)
    try:
        within(60, lambda: process.poll() is not None or _answers(url))
        assert process.poll() is None
        with httpx.Client(base_url=url) as client:
            for _ in range(3):
                body = {"model": "smollm2", "prompt": "hi", "max_tokens": 2}
                assert client.post("/v1/completions", json=body).status_code == 200
        process.terminate()
        assert process.wait(20) in (0, 120)  # 120: Python's own, where it cannot empty a stream at the end
    finally:
        process.kill()
