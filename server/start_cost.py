"""How long a server takes from its command to serving, and from there to the first token of its first answer.

Each start is a real `core serve` on a free port of this machine, and is stopped again; times are as a client sees them.
"""

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import httpx

from core.errors import ConfigError

STOP_S = 30
POLL_S = 0.01
PROMPT = "Water boils at"


class Start(NamedTuple):
    """Seconds of one start.

    ready_s   from the command until `/health` says that requests are served
    first_s   from then until the first token of the first answer
    """

    ready_s: float
    first_s: float


def measure(args: Sequence[str], time_limit_s: float) -> Start:
    """One start of `core serve ARGS`. Raises: ConfigError when it does not serve within the limit."""
    begin_s = time.perf_counter()
    with _server(args, begin_s + time_limit_s) as client:
        ready_s = time.perf_counter()
        first_s = _first_token_s(client)
    return Start(ready_s - begin_s, first_s - ready_s)


@contextmanager
def _server(args: Sequence[str], end_s: float) -> Iterator[httpx.Client]:
    """A server that is ready, and a client of it; it is stopped when the block ends."""
    command = [sys.executable, "-m", "server.cli", "serve", *args, "--port", "0", "--log-format", "json"]
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            address = _address(process, Path(log.name), end_s)
            with httpx.Client(base_url=address, timeout=max(1.0, end_s - time.perf_counter())) as client:
                while client.get("/health").status_code != httpx.codes.OK:
                    _check(process, Path(log.name), end_s)
                yield client
        finally:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[bytes], log: Path, end_s: float) -> str:
    """Where it says that it listens."""
    while True:
        for line in log.read_text(errors="replace").splitlines(keepends=True):
            if '"serving"' in line and line.endswith("\n"):
                return str(json.loads(line)["address"]).removesuffix("/v1")
        _check(process, log, end_s)


def _check(process: subprocess.Popen[bytes], log: Path, end_s: float) -> None:
    """Waits for a moment. Raises: ConfigError when the server has ended, or time is over."""
    time.sleep(POLL_S)
    code = process.poll()
    if code is not None:
        raise ConfigError(f"core serve ended with code {code}: {_last_words(log)}")
    if time.perf_counter() > end_s:
        raise ConfigError(f"core serve was not ready in time: raise --time-limit. {_last_words(log)}")


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def _first_token_s(client: httpx.Client) -> float:
    """When the first token of an answer is there. Raises: ConfigError when there is no answer."""
    [model] = [each["id"] for each in client.get("/v1/models").json()["data"]][:1]
    body = {"model": model, "prompt": PROMPT, "max_tokens": 1, "temperature": 0, "ignore_eos": True, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != httpx.codes.OK:
            raise ConfigError(f"the server answered {response.status_code}: {response.read().decode()[:200]}")
        for line in response.iter_lines():
            if line.startswith("data: {"):
                return time.perf_counter()
    raise ConfigError("the server's first answer has no token")
