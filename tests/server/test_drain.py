"""SIGTERM: nothing new is taken, what runs may finish for so long, the rest is failed in words."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from processes import Server, serve

NULL = ("smollm2", "--device", "null", "--max-num-seqs", "1")
BODY = {"model": "smollm2", "prompt": [5000], "max_tokens": 3, "ignore_eos": True}
LONG = BODY | {"prompt": [[100], [200]], "max_tokens": 250}
ENDLESS = LONG | {"prompt": [[i] for i in range(1, 100)], "max_tokens": 8000}


def told_to_stop(server: Server) -> None:
    """Send SIGTERM, and see it begin."""
    server.process.terminate()
    deadline_s = time.monotonic() + 5
    while server.get("/health").status_code == 200:
        assert time.monotonic() < deadline_s


def test_what_runs_finishes_and_nothing_new_is_taken(tmp_path: Path) -> None:
    with serve(tmp_path, *NULL, "--shutdown-timeout", "60") as server, ThreadPoolExecutor() as pool:
        with server.client.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as response:
            lines = response.iter_lines()
            next(lines)
            whole = pool.submit(server.post, "/v1/completions", LONG)
            while server.metrics()["num_requests_waiting"] < 2:
                pass
            told_to_stop(server)
            refused = server.post("/v1/completions", BODY | {"stream": True})
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "draining"
            assert server.get("/live").status_code == 200
            assert server.get("/health").json()["error"]["code"] == "draining"
            events = [line for line in lines if line]
        assert events[-1] == "data: [DONE]"
        assert "error" not in json.loads(events[-2].removeprefix("data: "))
        assert whole.result().json()["usage"]["completion_tokens"] == 500
        assert server.process.wait(10) == 0


def test_what_takes_too_long_is_failed(tmp_path: Path) -> None:
    """A stream ends with an error and [DONE]; who waits for a whole answer gets a 503."""
    with serve(tmp_path, *NULL, "--shutdown-timeout", "0.2") as server, ThreadPoolExecutor() as pool:
        with server.client.stream("POST", "/v1/completions", json=ENDLESS | {"stream": True}) as response:
            lines = response.iter_lines()
            next(lines)
            whole = pool.submit(server.post, "/v1/completions", ENDLESS)
            while server.metrics()["num_requests_waiting"] < 150:
                pass
            server.process.terminate()
            events = [line for line in lines if line]
        assert events[-1] == "data: [DONE]"
        assert "shut down" in json.loads(events[-2].removeprefix("data: "))["error"]["message"]
        assert whole.result().status_code == 503
        assert server.process.wait(10) == 0


@pytest.mark.parametrize(
    ("num_tokens", "timeout_s", "least_s", "most_s"),
    [(8000, 3, 2.5, 20), (50, 60, 0, 30)],
)
@pytest.mark.heavy
def test_the_background_counts(tmp_path: Path, num_tokens: int, timeout_s: int, least_s: float, most_s: float) -> None:
    """No HTTP request waits for it: the process ends when it is done, or as late as it may."""
    body = {"model": "smollm2", "input": "Hi", "max_output_tokens": num_tokens, "background": True}
    with serve(tmp_path, *NULL, "--shutdown-timeout", str(timeout_s)) as server:
        assert server.post("/v1/responses", body).status_code == 200
        start_s = time.monotonic()
        server.process.terminate()
        assert server.process.wait(most_s) == 0
        assert time.monotonic() - start_s >= least_s


@pytest.mark.heavy
def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    with serve(tmp_path, *NULL, "--shutdown-timeout", "60") as server:
        with server.client.stream("POST", "/v1/completions", json=ENDLESS | {"stream": True}) as response:
            lines = response.iter_lines()
            next(lines)
            told_to_stop(server)
            server.process.terminate()
            start_s = time.monotonic()
            assert server.process.wait(15) == 0
        assert time.monotonic() - start_s < 12
