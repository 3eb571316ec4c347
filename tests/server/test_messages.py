"""The Messages API over HTTP, mostly by Anthropic's client, on the null device, which counts on from the last id."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from processes import Server

ASK: dict[str, Any] = {
    "model": "smollm2",
    "messages": [{"role": "user", "content": "Hi"}],
    "max_tokens": 8,
    "temperature": 0,
}
ASK_BY_CLIENT = {name: value for name, value in ASK.items() if name != "temperature"} | {
    "extra_body": {"temperature": 0}
}
FIVE = {
    "type": "object",
    "properties": {"a": {"enum": [5]}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOLS: Any = [{"name": "add", "description": "Adds.", "input_schema": FIVE}]
CALL: dict[str, Any] = {
    "tools": TOOLS,
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    "max_tokens": 60,
}


@pytest.fixture(scope="module")
def client(null_server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=null_server.base_url, api_key="none", max_retries=0, timeout=60) as made:
        yield made


def chat(server: Server, **more: Any) -> Any:
    response = server.post("/v1/chat/completions", ASK | more)
    assert response.status_code == 200, response.text
    return response.json()


def test_text(null_server: Server, client: anthropic.Anthropic) -> None:
    system: Any = [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}]
    answer = client.messages.create(**ASK_BY_CLIENT, system="Be kind.")
    messages = [{"role": "system", "content": "Be kind."}, *ASK["messages"]]
    expected = chat(null_server, messages=messages)
    [block] = answer.content
    assert block.text == expected["choices"][0]["message"]["content"]
    assert (answer.role, answer.type, answer.stop_reason) == ("assistant", "message", "max_tokens")
    usage = answer.usage
    assert usage.output_tokens == 8
    assert usage.input_tokens + usage.cache_read_input_tokens == expected["usage"]["prompt_tokens"]
    assert client.messages.create(**ASK_BY_CLIENT, system=system).content[0].text == block.text


def test_stop_sequences(client: anthropic.Anthropic) -> None:
    text = client.messages.create(**ASK_BY_CLIENT).content[0].text
    stop = text[len(text) // 2 :][:2]
    answer = client.messages.create(**ASK_BY_CLIENT, stop_sequences=[stop])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", stop)
    assert answer.content[0].text == text[: text.index(stop)]


def test_a_form(client: anthropic.Anthropic) -> None:
    form: Any = {"type": "json_schema", "schema": {"enum": [5]}}
    answer = client.messages.create(**ASK_BY_CLIENT, output_config={"format": form})
    assert (answer.content[0].text, answer.stop_reason) == ("5", "end_turn")


def test_a_message_is_continued(null_server: Server, client: anthropic.Anthropic) -> None:
    messages: Any = [*ASK["messages"], {"role": "assistant", "content": "The capital"}]
    answer = client.messages.create(**ASK_BY_CLIENT | {"messages": messages})
    expected = chat(null_server, messages=messages, continue_final_message=True)
    assert answer.content[0].text == expected["choices"][0]["message"]["content"]


def test_stream_equals_whole(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**ASK_BY_CLIENT)
    with client.messages.stream(**ASK_BY_CLIENT) as stream:
        kinds = [event.type for event in stream if event.type != "text"]
        final = stream.get_final_message()
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert final.content[0].text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_calls(client: anthropic.Anthropic, stream: bool) -> None:
    """One is made, and its result is sent back."""
    if stream:
        with client.messages.stream(**ASK_BY_CLIENT | CALL) as coming:
            answer = coming.get_final_message()
    else:
        answer = client.messages.create(**ASK_BY_CLIENT | CALL)
    assert answer.stop_reason == "tool_use"
    [call] = answer.content
    assert (call.type, call.name, call.input) == ("tool_use", "add", {"a": 5})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "5"}]}
    history: Any = [
        *ASK["messages"],
        {"role": "assistant", "content": [{"type": "tool_use", "id": call.id, "name": "add", "input": call.input}]},
        {"role": "user", "content": [result, {"type": "text", "text": "Well?"}]},
    ]
    assert client.messages.create(**ASK_BY_CLIENT | {"messages": history}).usage.output_tokens == 8


def test_a_call_that_is_cut_off(null_server: Server) -> None:
    """It is streamed as far as it comes, and left out of a whole message, where it would be no JSON."""
    size = next(n for n in range(10, 60) if null_server.post("/v1/chat/completions", {
        **ASK, "max_tokens": n, "tools": [{"type": "function", "function": {"name": "add", "parameters": FIVE}}],
        "tool_choice": "required"}).json()["choices"][0]["message"].get("tool_calls"))  # fmt: skip
    body = ASK | CALL | {"max_tokens": size}
    whole = null_server.post("/v1/messages", body).json()
    assert (whole["content"], whole["stop_reason"]) == ([], "max_tokens")
    events = null_server.post("/v1/messages", body | {"stream": True}).text
    assert '"name":"add"' in events
    assert events.endswith('event: message_stop\ndata: {"type":"message_stop"}\n\n')


def test_count_tokens(client: anthropic.Anthropic) -> None:
    asked = {name: ASK[name] for name in ("model", "messages")}
    plain = client.messages.count_tokens(**asked).input_tokens
    usage = client.messages.create(**ASK_BY_CLIENT).usage
    assert plain == usage.input_tokens + usage.cache_read_input_tokens
    assert client.messages.count_tokens(**asked, tools=TOOLS).input_tokens > plain + 20


WRONG: list[tuple[dict[str, Any], int, str]] = [
    ({"messages": []}, 400, "messages"),
    ({"messages": [{"role": "system", "content": "x"}]}, 400, "role"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, 400, "'image'"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]}, 400, "tool_use_id"),
    (
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1"}]}]},
        400,
        "no message before",
    ),
    ({"max_tokens": 10**6}, 400, "max_tokens is 1000000"),
    ({"stop_sequences": [""]}, 400, "stop_sequences"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, 400, "thinking is 1024: this model does not reason"),
    ({"thinking": {"type": "enabled"}}, 400, "budget_tokens"),
    ({"thinking": {"type": "disabled", "budget_tokens": 5}}, 400, "budget_tokens"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, 400, "tools"),
    ({"tools": [{"name": "f", "input_schema": {"type": "wizard"}}]}, 400, "tools.0.input_schema has the type"),
    ({"tools": [{"name": "f", "input_schema": {"not": {}}}]}, 400, "tools cannot be enforced"),
    ({"tool_choice": {"type": "any"}}, 400, "no tools"),
    ({"cache_control": {"type": "ephemeral", "ttl": "1h"}}, 400, "cache_control"),
    ({"output_config": {"effort": "low"}}, 400, "output_config.effort"),
    (
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "wizard"}}}},
        400,
        "output_config json_schema cannot be enforced",
    ),
    ({"logprobs": True}, 400, "logprobs"),
    ({"model": "other"}, 404, "other"),
]


@pytest.mark.parametrize(("more", "status", "words"), WRONG)
def test_refusals(null_server: Server, more: dict[str, Any], status: int, words: str) -> None:
    """In the shape of this API, and with a real status even where a stream was asked for."""
    response = null_server.post("/v1/messages", ASK | more | {"stream": True})
    assert response.status_code == status, response.text
    body = response.json()
    assert body["type"] == "error"
    assert body["error"]["type"] == ("not_found_error" if status == 404 else "invalid_request_error")
    assert words in body["error"]["message"]


def test_the_client_knows_the_error(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.messages.create(**ASK_BY_CLIENT | {"max_tokens": 10**6})


def test_what_a_turn_of_blocks_means() -> None:
    from server.message_api.asked import PromptBody
    from server.strict import checked

    turns = [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "R", "signature": ""},
                {"type": "text", "text": "A"},
                {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "B"},
                {"type": "tool_result", "tool_use_id": "1", "content": "x", "is_error": True},
            ],
        },
    ]
    body = checked({"model": "m", "messages": turns, "system": "S", "thinking": {"type": "disabled"}}, PromptBody)
    made = body.chat(reasons=True)
    system, _, said, answered, asked = made.messages
    assert (system.role, system.content) == ("system", "S")
    assert (said.thoughts, said.content) == ("R", "A")
    assert json.loads(said.tool_calls[0].function.arguments) == {"a": 1}
    assert (answered.role, answered.content, answered.tool_call_id) == ("tool", "Error: x", "1")
    assert (asked.role, asked.content) == ("user", "B")
    assert made.reasoning_effort == "none"
    assert body.chat(reasons=False).reasoning_effort is None
