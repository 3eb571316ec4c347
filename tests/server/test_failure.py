"""The engine process is killed: clients hear of it, /health says so, nothing hangs."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from processes import CORE, Server, serve

LONG = {"model": "smollm2", "max_tokens": 8000, "ignore_eos": True}
PROMPTS = [[100 * i] for i in range(1, 33)]
NULL = ("smollm2", "--device", "null")


def within(seconds: float, condition: Callable[[], Any]) -> Any:
    """The first true value of `condition`, which must come within `seconds`."""
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s")


def kill_under_load(server: Server) -> tuple[list[str], httpx.Response]:
    """Kill the engine while one client streams and another waits; what each of them got."""
    url = f"{server.base_url}/v1/completions"
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(httpx.post, url, json=LONG | {"prompt": PROMPTS}, timeout=30)
        with httpx.stream("POST", url, json=LONG | {"prompt": PROMPTS, "stream": True}, timeout=30) as response:
            lines = response.iter_lines()
            next(lines)
            server.engine().kill()
            events = [line for line in lines if line]
        return events, waiting.result()


def check_clients(events: list[str], whole: httpx.Response) -> None:
    assert events[-1] == "data: [DONE]"
    assert "engine" in json.loads(events[-2].removeprefix("data: "))["error"]["message"]
    assert whole.status_code == 503
    assert whole.json()["error"]["code"] == "engine_not_running"


def test_exit(tmp_path: Path) -> None:
    with serve(tmp_path, *NULL) as server:
        events, whole = kill_under_load(server)
        response = within(2, lambda: (r := server.get("/health")).status_code == 503 and r)
        assert response.json()["error"]["message"]
        assert server.post("/v1/completions", LONG | {"prompt": [5], "stream": True}).status_code == 503
        check_clients(events, whole)
        assert server.process.wait(15) == 1
        assert "error:" in server.log.read_text().splitlines()[-1]


def test_restart(tmp_path: Path) -> None:
    with serve(tmp_path, *NULL, "--on-engine-failure", "restart") as server:
        dead = server.engine().pid
        events, whole = kill_under_load(server)
        check_clients(events, whole)
        within(60, lambda: server.get("/health").status_code == 200)
        assert server.engine().pid != dead
        body = LONG | {"prompt": [5], "max_tokens": 3}
        assert server.post("/v1/completions", body).json()["usage"]["completion_tokens"] == 3


def test_terminated_while_clients_wait(tmp_path: Path) -> None:
    """SIGTERM ends the server and its engine within seconds, with exit code 0."""
    with (
        serve(tmp_path, *NULL) as server,
        httpx.stream(
            "POST", f"{server.base_url}/v1/completions", json=LONG | {"prompt": PROMPTS, "stream": True}, timeout=30
        ) as response,
    ):
        next(response.iter_lines())
        server.process.terminate()
        assert server.process.wait(15) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_group_lets_requests_finish(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C in a terminal, and services that are stopped, reach the engine, too: it goes on until its server ends."""
    with serve(tmp_path, *NULL) as server:
        body = LONG | {"prompt": [5], "max_tokens": 600, "stream": True}
        with httpx.stream("POST", f"{server.base_url}/v1/completions", json=body, timeout=30) as response:
            lines = response.iter_lines()
            next(lines)
            server.engine().send_signal(number)
            server.process.send_signal(number)
            events = [line for line in lines if line]
        assert server.process.wait(15) == 0
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"


def test_a_frozen_engine_shows_in_health(null_server: Server) -> None:
    """Alive as a process, and doing nothing: not healthy. It serves again once it goes on."""
    engine = null_server.engine()
    engine.suspend()
    try:
        within(3, lambda: null_server.get("/health").status_code == 503)
    finally:
        engine.resume()
    within(3, lambda: null_server.get("/health").status_code == 200)
    assert null_server.post("/v1/completions", LONG | {"prompt": [5], "max_tokens": 3}).status_code == 200


def test_terminated_while_loading() -> None:
    process = subprocess.Popen([CORE, "serve", *NULL, "--port", "0"], stderr=subprocess.PIPE, text=True)
    within(20, lambda: psutil.Process(process.pid).children())
    process.terminate()
    _, stderr = process.communicate(timeout=20)
    assert (process.returncode, stderr) == (0, "")
