"""Nothing is ignored: every field that has no effect yet is refused by name, and every wrong value too."""

import json
from typing import Any

import httpx
import pytest
from processes import Server

LATER = {
    "audio": {"voice": "a"}, "best_of": 2, "data_parallel_rank": 0, "function_call": "auto",
    "functions": [{"name": "f"}], "guided_whitespace_pattern": " ", "kv_transfer_params": {}, "length_penalty": 2,
    "metadata": {"a": "b"}, "modalities": ["audio"], "prediction": {"type": "content"},
    "prompt_cache_key": "k", "safety_identifier": "u", "service_tier": "flex",
    "session_id": "s", "store": True, "suffix": "x", "use_beam_search": True,
    "verbosity": "low", "web_search_options": {},
}  # fmt: skip

OF_CHATS = {
    "add_generation_prompt": False, "chat_template": "{{ x }}", "chat_template_kwargs": {"a": 1},
    "continue_final_message": True, "documents": [{"text": "x"}], "include_reasoning": False,
    "parallel_tool_calls": False, "reasoning_effort": "low", "separate_reasoning": False, "thinking_token_budget": 5,
    "tool_choice": "auto", "tools": [{"type": "function", "function": {"name": "f"}}], "top_logprobs": 2,
}  # fmt: skip
"""Which completions have not."""

WRONG = [
    ("temperature", -0.1), ("temperature", "hot"), ("temperature", True), ("top_p", 0), ("top_p", 1.01),
    ("top_k", -2), ("top_k", 10**6), ("top_k", 1.5), ("seed", -1), ("seed", 2**64), ("max_tokens", 0),
    ("max_tokens", "5"), ("max_tokens", 10**9), ("stop", [""]), ("stop", ["x"] * 17), ("stop", 5),
    ("stop_token_ids", [10**6]), ("stop_token_ids", [-1]), ("ignore_eos", "yes"), ("stream", "yes"),
    ("stream_options", {"include_usage": True}), ("stream_interval", 0), ("stream_interval", 5),
    ("truncate_prompt_tokens", 0), ("truncate_prompt_tokens", -2), ("truncate_prompt_tokens", 10**6),
    ("truncation_side", "left"), ("truncation_side", "middle"), ("request_id", ""), ("request_id", "a b"),
    ("skip_special_tokens", "yes"), ("return_token_ids", 1), ("add_special_tokens", "no"),
    ("priority", "high"), 
    ("cache_salt", 5), ("user", 5),
]  # fmt: skip

BODIES = {
    "/v1/completions": {"model": "smollm2", "prompt": [5000], "max_tokens": 4},
    "/v1/chat/completions": {"model": "smollm2", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4},
}


def refused(response: httpx.Response, param: str | None, *words: str) -> None:
    """A 400 of the nested shape that names the field."""
    assert response.status_code == 400, response.text
    assert response.json().keys() == {"error"}
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    for word in words:
        assert word in error["message"]


def test_the_bodies_themselves_are_fine(null_server: Server) -> None:
    for path, body in BODIES.items():
        assert null_server.post(path, body).status_code == 200


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("field", LATER)
def test_later_fields(null_server: Server, path: str, field: str) -> None:
    refused(null_server.post(path, BODIES[path] | {field: LATER[field]}), field, field, "leave it out")


@pytest.mark.parametrize("field", OF_CHATS)
def test_completions_have_no_fields_of_chats(null_server: Server, field: str) -> None:
    body = BODIES["/v1/completions"] | {field: OF_CHATS[field]}
    refused(null_server.post("/v1/completions", body), field, field, "leave it out")


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(("field", "value"), WRONG)
def test_wrong_values(null_server: Server, path: str, field: str, value: Any) -> None:
    param = None if field == "stream_options" else field
    refused(null_server.post(path, BODIES[path] | {field: value}), param, field)


@pytest.mark.parametrize("path", BODIES)
def test_unknown_fields(null_server: Server, path: str) -> None:
    refused(null_server.post(path, BODIES[path] | {"bootstrap_host": "2.2.2.2"}), "bootstrap_host", "bootstrap_host")
    assert null_server.post(path, BODIES[path]).status_code == 200


@pytest.mark.parametrize("path", BODIES)
def test_unknown_stream_options(null_server: Server, path: str) -> None:
    options = {"stream": True, "stream_options": {"include_obfuscation": True}}
    refused(null_server.post(path, BODIES[path] | options), "stream_options", "include_obfuscation")
    options = {"stream": True, "stream_options": {"every": 5}}
    refused(null_server.post(path, BODIES[path] | options), "stream_options", "every")


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("field", ["model", "prompt", "messages"])
def test_missing_fields(null_server: Server, path: str, field: str) -> None:
    body = {name: value for name, value in BODIES[path].items() if name != field}
    if body == BODIES[path]:
        assert null_server.post(path, body).status_code == 200
    else:
        refused(null_server.post(path, body), field, field, "missing")


@pytest.mark.parametrize(
    "prompt", [[], [[]], "", [""], [5, "x"], [[5], "x", 3], 5, [1.5], [True], [10**6], [-1], [5000] * 9000, ["x"] * 257]
)
def test_wrong_prompts(null_server: Server, prompt: Any) -> None:
    refused(null_server.post("/v1/completions", BODIES["/v1/completions"] | {"prompt": prompt}), "prompt")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"role": "user"}, "content"),
        ({"role": "user", "content": None}, "content"),
        ({"role": "user", "content": 5}, "content"),
        ({"content": "x"}, "role"),
        ({"role": "wizard", "content": "x"}, "wizard"),
        ({"role": "tool", "content": "x", "tool_call_id": "1"}, "no message before it calls"),
        ({"role": "tool", "content": "x"}, "tool_call_id"),
        ({"role": "user", "content": "x", "tool_call_id": "1"}, "tool_call_id"),
        ({"role": "user", "content": "x", "reasoning_content": "1"}, "reasoning_content"),
        ({"role": "assistant", "content": "x", "reasoning": "1"}, "reasoning"),
        ({"role": "user", "content": "x", "name": "Bob"}, "name"),
        ({"role": "user", "content": "x", "colour": "red"}, "colour"),
        ({"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}, "tool_calls"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "image_url"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "text"),
        ({"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {}}]}, "text part"),
        ({"role": "user", "content": ["x"]}, "parts"),
        ("hello", "messages"),
    ],
)
def test_wrong_messages(null_server: Server, message: Any, words: str) -> None:
    body = BODIES["/v1/chat/completions"] | {"messages": [message]}
    refused(null_server.post("/v1/chat/completions", body), "messages", words)


def test_no_messages(null_server: Server) -> None:
    body = BODIES["/v1/chat/completions"] | {"messages": []}
    refused(null_server.post("/v1/chat/completions", body), "messages", "at least one")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_too_long_names_the_true_limit(null_server: Server, path: str, stream: bool) -> None:
    """A real status, even where a stream was asked for; what just fits is served."""
    limit = null_server.get("/v1/models").json()["data"][0]["max_model_len"]
    body = BODIES[path] | {"stream": stream, "max_tokens": limit + 1}
    response = null_server.post(path, body)
    refused(response, response.json()["error"]["param"], str(limit))
    if path == "/v1/completions":
        body = {"model": "smollm2", "prompt": [5000] * (limit + 1), "stream": stream}
        refused(null_server.post(path, body), "prompt", str(limit))
        body = {"model": "smollm2", "prompt": [5000] * (limit - 1), "max_tokens": 1}
        assert null_server.post(path, body).status_code == 200


@pytest.mark.parametrize("raw", [b"", b"{", b"null", b"[]", b'"x"', b'{"model": NaN}', b"\xff\xfe", b"[" * 5000])
def test_not_json(null_server: Server, raw: bytes) -> None:
    for path in BODIES:
        refused(httpx.post(f"{null_server.base_url}{path}", content=raw, timeout=10), None, "body")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_nested_too_deep(null_server: Server, path: str) -> None:
    """The object itself is one of 128 levels."""
    for levels, passes in ((127, True), (128, False), (450, False)):
        raw = b'{"user": ' + b"[" * levels + b"]" * levels + b"}"
        response = httpx.post(f"{null_server.base_url}{path}", content=raw, timeout=10)
        assert response.status_code == 400
        assert ("128 levels" in response.text) != passes


@pytest.mark.parametrize(
    "asked",
    [
        {"priority": 2**64},
        {"priority": -(2**63) - 1},
        {"guided_json": {"type": "integer", "maximum": 2**70}},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"maximum": [{"x": 2**64}]}}}]},
    ],
)
def test_integers_of_more_than_64_bits(null_server: Server, asked: dict[str, Any]) -> None:
    """Nothing on the way to the engine takes them."""
    path = "/v1/chat/completions"
    response = null_server.client.post(path, content=json.dumps(BODIES[path] | asked))
    [field] = asked
    refused(response, field, f"{field} has the integer", "64 bits")
    assert null_server.post(path, BODIES[path] | {"seed": 2**64 - 1, "priority": -(2**63)}).status_code == 200


def test_a_body_without_end(null_server: Server) -> None:
    raw = b'{"model": "' + b"x" * (33 * 2**20)
    response = httpx.post(f"{null_server.base_url}/v1/completions", content=raw, timeout=60)
    assert response.status_code == 413
    assert "33554432" in response.json()["error"]["message"]
