"""Starting and stopping real `core` processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil

CORE = str(Path(sys.executable).parent / "core")
START_S = 120
STOP_S = 20


@dataclass
class Server:
    """A running server. `log` holds what it wrote to stderr."""

    process: subprocess.Popen[bytes]
    base_url: str
    log: Path

    @cached_property
    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.base_url}/v1", api_key="none", max_retries=0, timeout=60)

    def post(self, path: str, body: Any, **more: Any) -> httpx.Response:
        return httpx.post(f"{self.base_url}{path}", json=body, timeout=60, **more)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.base_url}{path}", timeout=10)

    def engine(self) -> psutil.Process:
        """The engine process: of the server's children, the one that holds the model."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return max(children, key=lambda child: child.memory_info().rss)


def run_core(
    *args: str, timeout_s: float = START_S, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `core` to its end."""
    return subprocess.run(
        [CORE, *args], capture_output=True, text=True, timeout=timeout_s, env={**os.environ, **(env or {})}, check=False
    )


@contextmanager
def serve(folder: Path, *args: str) -> Iterator[Server]:
    """`core serve ARGS` until the block ends; it must then stop within `STOP_S` and leave no process behind."""
    log = folder / "server.log"
    with log.open("wb") as stderr:
        process = subprocess.Popen([CORE, "serve", *args, "--port", "0"], stdout=stderr, stderr=stderr)
    try:
        server = Server(process, _address(process, log), log)
        family = psutil.Process(process.pid).children(recursive=True)
        with server.openai:
            yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        finally:
            process.kill()
    assert "Traceback" not in log.read_text()
    assert not [child for child in psutil.wait_procs(family, timeout=5)[1] if child.is_running()]


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s and process.poll() is None:
        for line in log.read_text().splitlines():
            if "is served at http" in line:
                return line.rpartition(" ")[2].removesuffix("/v1")
        time.sleep(0.05)
    raise AssertionError(f"the server did not start (exit code {process.poll()}):\n{log.read_text()}")
