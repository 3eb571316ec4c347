"""Starting and stopping real `core` processes."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from server.cli import main

CORE = str(Path(sys.executable).parent / "core")
START_S = 300
STOP_S = 20

_COMMON_LABELS = re.compile(r'engine="0",?|model_name="[^"]*",?')


@dataclass
class Server:
    """A running server. `log` holds what it wrote to stderr."""

    process: subprocess.Popen[bytes]
    base_url: str
    log: Path
    key: str = "none"

    @cached_property
    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.base_url}/v1", api_key=self.key, max_retries=0, timeout=60)

    @cached_property
    def client(self) -> httpx.Client:
        """One for all requests: each new one costs as much as a hundred of them."""
        return httpx.Client(base_url=self.base_url, timeout=60)

    def post(self, path: str, body: Any, **more: Any) -> httpx.Response:
        return self.client.post(path, json=body, **{"headers": self.headers, **more})

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.client.get(path, **{"headers": self.headers, "timeout": 10, **more})

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.key == "none" else {"Authorization": f"Bearer {self.key}"}

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics: `name{label="value"}` without the labels that all have -> its value."""
        samples = [line for line in self.get("/metrics").text.splitlines() if line and not line.startswith("#")]
        found = {}
        for sample in samples:
            name, value = sample.removeprefix("vllm:").rsplit(" ", 1)
            found[_COMMON_LABELS.sub("", name).replace(",}", "}").replace("{}", "")] = float(value)
        return found

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


def run_here(*args: str) -> subprocess.CompletedProcess[str]:
    """Run `core` to its end in this process: what loads torch is much faster here, where it is loaded already."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["core", *args])
        with pytest.raises(SystemExit) as ended:
            main()
    assert isinstance(ended.value.code, int)
    return subprocess.CompletedProcess(args, ended.value.code, out.getvalue(), err.getvalue())


@contextmanager
def serve(
    folder: Path, *args: str, key: str = "none", env: dict[str, str] | None = None, core: str = CORE
) -> Iterator[Server]:
    """`core serve ARGS` until the block ends; it must then stop within `STOP_S` and leave no process behind."""
    log = folder / "server.log"
    environment = {**os.environ, **(env or {})}
    with log.open("wb") as stderr:
        process = subprocess.Popen([core, "serve", *args, "--port", "0"], stdout=stderr, stderr=stderr, env=environment)
    try:
        server = Server(process, _address(process, log), log, key)
        family = psutil.Process(process.pid).children(recursive=True)
        with server.openai, server.client:
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
            if line.startswith('{"time"') and '"serving"' in line:
                return str(json.loads(line)["address"]).removesuffix("/v1")
            if "is served at " in line:
                return line.rpartition(" ")[2].removesuffix("/v1")
        time.sleep(0.05)
    raise AssertionError(f"the server did not start (exit code {process.poll()}):\n{log.read_text()}")
