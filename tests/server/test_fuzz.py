"""Requests that no client library would send: an answer comes, no 500 and no traceback, and then all is as before.

What the fuzz found is written out below it.
"""

import http.client
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from processes import Server, serve
from raw_requests import sent

HANG_S = 60
QUICK, MANY = 400, 20_000
ENDS = {"hung up", "left", 200, 307, *range(400, 500)}


def status_of(server: Server, seed: int) -> int | str:
    """What comes back for the request of this seed: a status, or how the connection ended."""
    asked = sent(seed)
    host, _, port = server.base_url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=HANG_S) as connection:
        method = asked.data.partition(b" ")[0].decode("latin-1")
        answer = http.client.HTTPResponse(connection, method=method)
        try:
            connection.sendall(asked.data)
            if asked.cut:
                connection.shutdown(socket.SHUT_WR)
            if asked.leaves:
                return "left"
            answer.begin()
            answer.read()
        except TimeoutError:
            return "hangs"
        except (OSError, http.client.HTTPException) as error:
            return f"no answer: {type(error).__name__}" if asked.is_http else "hung up"
        return answer.status


def fuzz(server: Server, seeds: range) -> None:
    num_fds = psutil.Process(server.process.pid).num_fds()
    with ThreadPoolExecutor(4) as pool:
        statuses = dict(zip(seeds, pool.map(lambda seed: status_of(server, seed), seeds), strict=True))
    wrong = {seed: status for seed, status in statuses.items() if status not in ENDS}
    assert not wrong, {seed: (status, sent(seed).data[:300]) for seed, status in [*wrong.items()][:5]}
    counts = Counter(statuses.values())
    assert counts[200] > len(seeds) / 20, counts
    assert counts["hung up"] < len(seeds) / 10, counts
    log = server.log.read_text()
    assert "Traceback" not in log
    assert "Exception in ASGI" not in log
    answer = server.post("/v1/completions", {"model": "smollm2", "prompt": [5000], "max_tokens": 4})
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    deadline_s = time.monotonic() + HANG_S
    while server.get("/kv").json()["num_running"] or psutil.Process(server.process.pid).num_fds() > num_fds + 2:
        assert time.monotonic() < deadline_s, "something of requests that ended is left over"
        time.sleep(0.05)


def test_a_few_hundred(null_server: Server) -> None:
    fuzz(null_server, range(QUICK))


@pytest.fixture(scope="module")
def fuzzed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """In JSON logs every defect is a line."""
    folder: Path = tmp_path_factory.mktemp("fuzzed")
    with serve(folder, "smollm2", "--device", "null", "--max-model-len", "256", "--log-format", "json") as server:
        yield server


@pytest.mark.heavy
def test_many(fuzzed_server: Server) -> None:
    fuzz(fuzzed_server, range(QUICK, QUICK + MANY))


@pytest.mark.parametrize("digits", [1, 21, 4000, 5000])
def test_numbers_of_many_digits_in_a_query(null_server: Server, digits: int) -> None:
    """Python refuses to read those of more than 4,300."""
    answer = null_server.get(f"/kv?sequences={'9' * digits}")
    assert answer.status_code == (200 if digits == 1 else 400)
    assert len(answer.text) < 12_000 if digits == 1 else len(answer.text) < 300


@pytest.mark.parametrize("body", [{"prompt": "Hi"}, {"messages": [{"role": "user", "content": "Hi"}]}, {"tokens": [5]}])
def test_an_empty_name_is_no_model(null_server: Server, body: dict[str, Any]) -> None:
    path = "/detokenize" if "tokens" in body else "/tokenize"
    assert null_server.post(path, body | {"model": None}).status_code == 200
    assert null_server.post(path, body | {"model": ""}).status_code == 404
    assert null_server.post(path, body | {"model": 5}).status_code == 400


@pytest.mark.parametrize("arguments", ['{"a": NaN}', '{"a": -Infinity}', '{"a": 1e999}', r'{"a": "\ud800"}', "[]", "{"])
def test_arguments_of_earlier_calls_are_json(null_server: Server, arguments: str) -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    messages: list[dict[str, Any]] = [{"role": "assistant", "tool_calls": [call]}]
    answer = null_server.post("/tokenize", {"messages": messages})
    assert answer.status_code == 400, answer.text
    assert "must be the text of a JSON object" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("choice", "words"), [({"type": "tool"}, "name is missing"), ({"type": "any", "name": "f"}, "name is no field")]
)
def test_a_tool_choice_of_messages_is_whole(null_server: Server, choice: Any, words: str) -> None:
    tool = {"name": "f", "input_schema": {}}
    messages = [{"role": "user", "content": "Hi"}]
    body = {"model": "smollm2", "max_tokens": 4, "messages": messages, "tools": [tool], "tool_choice": choice}
    answer = null_server.post("/v1/messages", body)
    assert answer.status_code == 400
    assert f"tool_choice: {words}" in answer.json()["error"]["message"]


def test_an_empty_form_is_called_empty(null_server: Server) -> None:
    answer = null_server.post("/v1/completions", {"model": "smollm2", "prompt": "Hi", "ebnf": ""})
    assert answer.status_code == 400
    assert "ebnf grammar is empty" in answer.json()["error"]["message"]
