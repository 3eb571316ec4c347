"""Logs on a full disk: the server starts, answers, and keeps its clients' connections."""

import socket
import subprocess
from pathlib import Path

import httpx
import pytest
from processes import CORE
from test_failure import within


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.ConnectError:
        return False


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
