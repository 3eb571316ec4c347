"""Several calls in one answer, in every format that models write them in, streamed and whole; and one where that is all
that may be. Source: https://github.com/vllm-project/vllm/issues/39584 and
https://github.com/ai-dynamo/dynamo/pull/4723, where they crashed, vanished, or shared the index 0."""

from collections.abc import Iterator
from typing import Any

import pytest
from processes import Server, serve
from test_tools import ASK, SCHEMA_FORM, check, post, streamed, without_ids

HEAVY = ("mistral", "deepseek_v3")
DRAWN: dict[str, Any] = {"tool_choice": "required", "temperature": 3, "max_tokens": 400}


@pytest.fixture(
    scope="module",
    params=["hermes", "llama3_json", *(pytest.param(name, marks=pytest.mark.heavy) for name in HEAVY)],
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The null device, whose calls are written as some model writes them."""
    if request.param == "hermes":
        yield request.getfixturevalue("null_server")
        return
    flags = ("--device", "null", "--max-model-len", "2K", "--tool-call-parser", request.param)
    with serve(tmp_path_factory.mktemp(request.param), "smollm2", *flags) as started:
        yield started


def test_several_calls(server: Server) -> None:
    """Whatever is drawn, they are of their schemas. The last one may be cut off."""
    for seed in range(20):
        whole = post(server, **DRAWN, seed=seed)["choices"][0]
        assert without_ids(whole) == without_ids(streamed(server, **DRAWN, seed=seed))
        calls = whole["message"]["tool_calls"]
        check(calls if whole["finish_reason"] == "tool_calls" else calls[:-1])
        assert len({call["id"] for call in calls}) == len(calls)
        if len(calls) > 2:
            return
    raise AssertionError("no seed gives several calls")


def test_one_call(server: Server) -> None:
    for seed in range(3):
        choice = post(server, **DRAWN, seed=seed, parallel_tool_calls=False)["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        [call] = choice["message"]["tool_calls"]
        check([call])


def test_a_form_or_calls(server: Server) -> None:
    """Refused for the format that marks calls by nothing but how they are written."""
    body = ASK | {"response_format": SCHEMA_FORM, "temperature": 3, "parallel_tool_calls": False}
    if "llama3_json" not in server.log.read_text():
        reasons = {post(server, **body, seed=seed)["choices"][0]["finish_reason"] for seed in range(8)}
        assert reasons == {"stop", "tool_calls"}
        return
    response = server.post("/v1/chat/completions", body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "response_format"
    assert "llama3_json" in response.json()["error"]["message"]
