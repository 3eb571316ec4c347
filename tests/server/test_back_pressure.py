"""A queue with an end: what would have to wait too long is told so at once, and what was taken is finished."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import sleep

from processes import Server

from core.engine.process import BEAT_S

SHORT = {"model": "smollm2", "prompt": [5000], "max_tokens": 2}
LONG = SHORT | {"prompt": [9] * 1001}


@contextmanager
def busy(server: Server) -> Iterator[None]:
    """One request runs for as long as the block does, and everything else waits."""
    body = {"model": "smollm2", "prompt": [7], "max_tokens": 8000, "ignore_eos": True, "stream": True}
    with server.client.stream("POST", "/v1/completions", json=body, headers=server.headers) as response:
        assert response.status_code == 200
        lines = response.iter_lines()  # once nobody holds it, the connection is closed
        next(lines)
        yield


def test_overflow_is_429_and_the_rest_completes(guarded_server: Server) -> None:
    """Two may wait: of ten, eight are turned away, before and during the two.

    Source: https://github.com/vllm-project/vllm/issues/18826.
    """
    with ThreadPoolExecutor(10) as pool:
        with busy(guarded_server):
            waiting = [pool.submit(guarded_server.post, "/v1/completions", SHORT) for _ in range(10)]
            refused = 0
            while refused < 8:
                refused = sum(one.done() for one in waiting)
        answers = [one.result() for one in waiting]
    assert sorted(answer.status_code for answer in answers) == [200] * 2 + [429] * 8
    for answer in answers:
        if answer.status_code == 429:
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            error = answer.json()["error"]
            assert error["type"] == "rate_limit_error"
            assert "--max-num-queued-reqs 2" in error["message"]


def test_streams_get_a_real_status(guarded_server: Server) -> None:
    with busy(guarded_server):
        answer = guarded_server.post("/v1/completions", SHORT | {"n": 3, "stream": True})
    assert answer.status_code == 429
    assert answer.headers["content-type"] == "application/json"


def test_a_message_is_turned_away_in_its_own_shape(guarded_server: Server) -> None:
    body = {"model": "smollm2", "max_tokens": 2, "messages": [{"role": "user", "content": "a b " * 600}]}
    with busy(guarded_server):
        answer = guarded_server.post("/v1/messages", body)
    assert answer.status_code == 429
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert int(answer.headers["retry-after"]) >= 1


def test_what_waited_once_does_not_count(guarded_server: Server) -> None:
    """What the engine said last is older than the end of those that waited."""
    for _ in range(3):
        with ThreadPoolExecutor(2) as pool:
            with busy(guarded_server):
                waiting = [pool.submit(guarded_server.post, "/v1/completions", SHORT) for _ in range(2)]
                sleep(2 * BEAT_S)
            assert [one.result().status_code for one in waiting] == [200, 200]
        with busy(guarded_server):
            assert "1001 prompt tokens" in guarded_server.post("/v1/completions", LONG).text


def test_tokens_that_wait(guarded_server: Server) -> None:
    """A prompt that alone is over the limit of the queue is served when there is none."""
    with busy(guarded_server):
        answer = guarded_server.post("/v1/completions", LONG)
        assert answer.status_code == 429
        assert "1001 prompt tokens" in answer.json()["error"]["message"]
        assert "--max-num-queued-tokens 1000" in answer.json()["error"]["message"]
    answers = [guarded_server.post("/v1/completions", LONG) for _ in range(20)]
    assert answers[-1].status_code == 200
