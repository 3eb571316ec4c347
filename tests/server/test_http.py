"""What every route shares: error shapes, request ids, liveness, and a light API process."""

import asyncio
import socket
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import pytest
from processes import Server
from starlette.types import Message

from server.stream import TURN, EventStream


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/v1/models/gpt-9", 404),
        ("GET", "/v1/completions", 405),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/health", 405),
        ("DELETE", "/v1/models", 405),
        ("GET", "/docs", 404),
        ("POST", "/openapi.json", 405),
    ],
)
def test_errors_have_one_shape(null_server: Server, method: str, path: str, status: int) -> None:
    response = httpx.request(method, f"{null_server.base_url}{path}")
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert response.json()["error"].keys() == {"message", "type", "param", "code"}
    assert response.headers["x-request-id"]


def test_health(null_server: Server) -> None:
    assert null_server.get("/health").status_code == 200


def test_models(null_server: Server) -> None:
    models = null_server.get("/v1/models").json()
    assert models["object"] == "list"
    assert [m["id"] for m in models["data"]] == ["smollm2", "other-name"]
    assert all(m["object"] == "model" and m["max_model_len"] > 1 for m in models["data"])


def test_request_ids_are_echoed_or_made(null_server: Server) -> None:
    body = {"model": "smollm2", "prompt": [5000], "max_tokens": 1}
    given = null_server.post("/v1/completions", body, headers={"X-Request-Id": "mine-17"})
    assert given.headers["x-request-id"] == "mine-17"
    made = {null_server.post("/v1/completions", body | {"stream": s}).headers["x-request-id"] for s in (True, False)}
    assert len(made) == 2


def test_the_api_process_has_no_torch(null_server: Server) -> None:
    """Not even after it has served, and the engine process, by contrast, has it."""
    null_server.post("/v1/completions", {"model": "smollm2", "prompt": "Hi", "max_tokens": 1})
    assert "libtorch" not in Path(f"/proc/{null_server.process.pid}/maps").read_text()
    assert "libtorch" in Path(f"/proc/{null_server.engine().pid}/maps").read_text()


LONG = {"model": "smollm2", "prompt": [[100 * i] for i in range(1, 9)], "max_tokens": 8000, "ignore_eos": True}


def served_at_once(server: Server) -> None:
    """The server, which runs one sequence at a time, is free within 2 s: nothing of the long requests is left."""
    start_s = time.monotonic()
    body = {"model": "smollm2", "prompt": [5000], "max_tokens": 1}
    assert server.post("/v1/completions", body).status_code == 200
    assert time.monotonic() - start_s < 2


@pytest.mark.parametrize("stream", [False, True])
def test_hanging_up_aborts(narrow_server: Server, stream: bool) -> None:
    """All 8 choices, of which one runs and 7 wait; they would take more than 10 s."""
    url = f"{narrow_server.base_url}/v1/completions"
    if stream:
        with httpx.stream("POST", url, json=LONG | {"stream": True}, timeout=60) as response:
            assert next(response.iter_lines()).startswith("data: {")
    else:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url, json=LONG, timeout=0.5)
    served_at_once(narrow_server)


def test_hanging_up_while_queued(narrow_server: Server) -> None:
    """A client that leaves before its request was ever scheduled leaves nothing behind."""
    url = f"{narrow_server.base_url}/v1/completions"
    with httpx.stream("POST", url, json=LONG | {"stream": True}, timeout=60) as running:
        next(running.iter_lines())
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url, json=LONG, timeout=0.5)
    served_at_once(narrow_server)


def test_hanging_up_is_noticed_while_much_waits_to_be_sent() -> None:
    """Within a few turns, also where no event has to be waited for."""
    sent: list[Message] = []
    gone = asyncio.Event()

    async def receive() -> Message:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)
        gone.set()

    async def rest() -> AsyncGenerator[bytes]:
        for _ in range(1000):
            yield b"data: {}\n\n"

    asyncio.run(EventStream(b"data: {}\n\n", rest())({"type": "http"}, receive, send))
    assert 2 < len(sent) < 10 * TURN


def test_half_a_request_harms_nobody(null_server: Server) -> None:
    host, _, port = null_server.base_url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n{")
    assert null_server.get("/health").status_code == 200
