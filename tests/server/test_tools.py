"""Tools over HTTP: offered, called, and answered. Arguments always are of the schema, whatever the model draws."""

import json
from typing import Any

import jsonschema
import pytest
from processes import Server

WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}


def tool_of(parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


WIZARD, LIST = tool_of({"type": "wizard"}), tool_of({"type": ["array", "null"]})
NOTHING = tool_of({"properties": {"a": {"type": "wizard"}}})
OR_NULL = tool_of({"type": ["object", "null"], "maxProperties": 0})
ADD = {
    "name": "add",
    "parameters": {
        "type": "object",
        "properties": {axis: {"type": "integer", "minimum": -99, "maximum": 99} for axis in "ab"},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}
TOOLS = [{"type": "function", "function": function} for function in (WEATHER, ADD)]
SCHEMAS = {function["name"]: function["parameters"] for function in (WEATHER, ADD)}
SCHEMA_FORM = {"type": "json_schema", "json_schema": {"name": "add", "schema": ADD["parameters"]}}
ASK = {
    "model": "smollm2",
    "messages": [{"role": "user", "content": "What is the weather in Paris, in C?"}],
    "tools": TOOLS,
    "max_tokens": 100,
}


def post(server: Server, **more: Any) -> Any:
    response = server.post("/v1/chat/completions", ASK | more)
    assert response.status_code == 200, response.text
    return response.json()


def streamed(server: Server, **more: Any) -> Any:
    """A choice put together from its chunks, which must keep to the contract of calls in streams."""
    response = server.post("/v1/chat/completions", ASK | more | {"stream": True})
    assert response.status_code == 200, response.text
    events = response.text.split("\n\n")[:-2]
    choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
    message: dict[str, Any] = {"role": "assistant", "content": None}
    calls: list[dict[str, Any]] = []
    for delta in (choice["delta"] for choice in choices):
        if delta.get("content"):
            message["content"] = (message["content"] or "") + delta["content"]
        for call in delta.get("tool_calls", []):
            if call["index"] == len(calls):
                assert call["type"] == "function"
                calls.append({"function": call["function"], "id": call["id"], "type": "function"})
            else:
                assert call["index"] == len(calls) - 1
                assert not {"id", "type"} & call.keys()
                assert "name" not in call["function"]
                calls[-1]["function"]["arguments"] += call["function"]["arguments"]
    if calls:
        message["tool_calls"] = calls
    return {"message": message, "finish_reason": choices[-1]["finish_reason"]}


def check(calls: list[Any]) -> None:
    for call in calls:
        jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMAS[call["function"]["name"]])


def without_ids(choice: Any) -> Any:
    message = dict(choice["message"])
    calls = [call["function"] for call in message.pop("tool_calls", [])]
    content = message.get("content") or None
    return content, calls, choice["finish_reason"]


def test_required(cpu_server: Server) -> None:
    choice = post(cpu_server, tool_choice="required", parallel_tool_calls=False, temperature=1)["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    check(choice["message"]["tool_calls"])


def test_named(null_server: Server) -> None:
    named = {"type": "function", "function": {"name": "add"}}
    choice = post(null_server, tool_choice=named, parallel_tool_calls=False, temperature=0)["choices"][0]
    [call] = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "add"
    assert call["id"].startswith("call_")
    check([call])


def test_a_call_is_forced_into_its_schema(null_server: Server) -> None:
    """Among what the grammar allows, this draws at random: several calls, of both functions."""
    names = set()
    for seed in range(3):
        body = {"tool_choice": "required", "temperature": 3, "seed": seed, "max_tokens": 400}
        choice = post(null_server, **body)["choices"][0]
        calls = choice["message"]["tool_calls"]
        check(calls if choice["finish_reason"] == "tool_calls" else calls[:-1])
        names |= {call["function"]["name"] for call in calls}
        assert len({call["id"] for call in calls}) == len(calls)
        [_] = post(null_server, **body, parallel_tool_calls=False)["choices"][0]["message"]["tool_calls"]
    assert names == SCHEMAS.keys()


@pytest.mark.parametrize("max_tokens", [3, 16, 30, 300])
def test_stream_equals_whole(null_server: Server, max_tokens: int) -> None:
    """Also where a call is cut off, which ends with `length`. Source: https://github.com/vllm-project/vllm/issues/47903."""
    body = {"tool_choice": "required", "temperature": 3, "seed": 5, "max_tokens": max_tokens}
    whole = post(null_server, **body, parallel_tool_calls=False)["choices"][0]
    assert without_ids(whole) == without_ids(streamed(null_server, **body, parallel_tool_calls=False))
    assert whole["finish_reason"] == ("tool_calls" if max_tokens == 300 else "length")


def test_auto_holds_a_call_to_its_schema_once_it_begins(null_server: Server, smollm2: Any) -> None:
    """The mark of a call is forced upon the model: each of its tokens is likelier than the next one, and than itself
    once it was drawn. What follows would be no call."""
    mark = smollm2.tokenizer().encode("<tool_call>", add_special_tokens=False)
    bias = {str(token_id): 100 - n / 2 for n, token_id in enumerate(mark)}
    body = {"temperature": 0, "logit_bias": bias, "presence_penalty": 2, "frequency_penalty": 2, "max_tokens": 200}
    whole = post(null_server, **body, parallel_tool_calls=False)["choices"][0]
    assert whole["finish_reason"] == "tool_calls"
    check(whole["message"]["tool_calls"])
    assert without_ids(whole) == without_ids(streamed(null_server, **body, parallel_tool_calls=False))


@pytest.mark.parametrize("asked", [{"tool_choice": "auto"}, {"tool_choice": "none"}, {}])
def test_a_model_may_also_answer(null_server: Server, asked: dict[str, Any]) -> None:
    choice = post(null_server, temperature=0, max_tokens=5, **asked)["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"]
    assert "tool_calls" not in choice["message"]


def test_tools_are_in_the_prompt_unless_none_may_be_called(null_server: Server, smollm2: Any) -> None:
    def prompt(**more: Any) -> str:
        ids = post(null_server, max_tokens=1, return_token_ids=True, **more)["prompt_token_ids"]
        return smollm2.tokenizer().decode(ids, skip_special_tokens=False)

    for name in SCHEMAS:
        assert f'"name": "{name}"' in prompt()
        assert f'"name": "{name}"' not in prompt(tool_choice="none")
    system = [{"role": "system", "content": "Be kind."}, *ASK["messages"]]
    assert "Be kind.\n\nYou may call" in prompt(messages=system)
    assert prompt(messages=system).count("<|im_start|>system") == 1


def test_calls_and_answers_of_earlier_turns_are_in_the_prompt(null_server: Server, smollm2: Any) -> None:
    function = {"name": "add", "arguments": '{"a": 1, "b": 2}', "parsed_arguments": {"a": 7}}
    call = {"id": "call_1", "type": "function", "function": function}
    messages = [
        *ASK["messages"],
        {"role": "assistant", "content": None, "parsed": [7], "tool_calls": [call, {**call, "id": "call_2"}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
        {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "three"}]},
    ]
    ids = post(null_server, messages=messages, max_tokens=1, return_token_ids=True)["prompt_token_ids"]
    text = smollm2.tokenizer().decode(ids, skip_special_tokens=False)
    written = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    assert f"assistant\n{written}\n{written}<|im_end|>" in text
    answers = "<tool_response>\n3\n</tool_response>\n<tool_response>\nthree\n</tool_response>"
    assert f"user\n{answers}<|im_end|>" in text


def test_arguments_are_an_object_even_where_they_may_be_null(null_server: Server) -> None:
    choice = post(null_server, tools=[OR_NULL], tool_choice="required", parallel_tool_calls=False, temperature=0)
    [call] = choice["choices"][0]["message"]["tool_calls"]
    assert call["function"]["arguments"] == "{}"


def test_a_stop_string_does_not_cut_a_call(null_server: Server) -> None:
    body = {"tool_choice": "required", "temperature": 3, "seed": 5, "max_tokens": 300, "parallel_tool_calls": False}
    assert without_ids(post(null_server, **body, stop=['"', "{"])["choices"][0]) == without_ids(
        post(null_server, **body)["choices"][0]
    )


def test_usage_is_a_chunk_of_its_own(null_server: Server) -> None:
    """Source: https://github.com/ggml-org/llama.cpp/pull/15444."""
    body = ASK | {
        "tool_choice": "required",
        "max_tokens": 60,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    events = null_server.post("/v1/chat/completions", body).text.split("\n\n")[:-2]
    *chunks, last = [json.loads(event.removeprefix("data: ")) for event in events]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] > 0
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)


def test_openai_client(null_server: Server) -> None:
    """A whole conversation: a call, its answer sent back, and streamed calls."""
    client = null_server.openai.chat.completions
    asked: dict[str, Any] = {"model": "smollm2", "messages": ASK["messages"], "tools": TOOLS, "temperature": 0}
    called = asked | {"tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 100}
    message = client.create(**called).choices[0].message
    [call] = message.tool_calls
    check([call.model_dump()])
    answer = {"role": "tool", "tool_call_id": call.id, "content": "20 degrees"}
    history = [*ASK["messages"], message.model_dump(), answer]
    assert client.create(**asked | {"messages": history}, max_tokens=5).usage.completion_tokens == 5
    with client.stream(**called) as stream:
        again = stream.get_final_completion().choices[0].message
    assert [c.function.arguments for c in again.tool_calls] == [call.function.arguments]


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"tool_choice": "maybe"}, "tool_choice", "tool_choice is \"maybe\": Input should be 'none', 'auto' or 'required'"),
    ({"tool_choice": {"type": "function"}}, "tool_choice", "tool_choice.function is missing"),
    ({"tool_choice": {"type": "function", "function": {"name": "sub"}}}, "tool_choice", "get_weather, add"),
    ({"tool_choice": "required", "tools": []}, "tool_choice", "no tools"),
    ({"tools": [TOOLS[0], TOOLS[0]]}, "tools", "'get_weather'"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools", "name"),
    ({"tools": [{"type": "web_search"}]}, "tools", "function"),
    ({"tools": [NOTHING]}, "tools", "enforced"),
    ({"tools": [WIZARD]}, "tools", 'parameters has the type "wizard": arguments are an object'),
    ({"tools": [LIST]}, "tools", "arguments are an object"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}]}, "tools", "enforced"),
    ({"tools": TOOLS[:1] * 129}, "tools", "128"),
    ({"response_format": {"type": "json_object"}, "tool_choice": "required"}, "response_format", "auto"),
    ({"response_format": SCHEMA_FORM, "tools": [NOTHING]}, "tools", "tools cannot be enforced"),
    ({"guided_regex": "("}, "guided_regex", "guided_regex regex cannot be enforced"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "messages", "function"),
    (
        {
            "messages": [
                {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "[1"}}]}
            ]
        },
        "messages",
        "JSON object",
    ),
]


@pytest.mark.parametrize(("asked", "param", "words"), WRONG)
def test_refusals(null_server: Server, asked: dict[str, Any], param: str, words: str) -> None:
    response = null_server.post("/v1/chat/completions", ASK | asked)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert words in response.json()["error"]["message"]
    assert "structured" not in response.json()["error"]["message"]


def test_a_form_or_calls(null_server: Server) -> None:
    """An output is one or the other, from its first character on; streamed and whole are equal."""
    content, calls = [], []
    for seed in range(8):
        body = {"response_format": SCHEMA_FORM, "temperature": 3, "seed": seed, "parallel_tool_calls": False}
        choice = post(null_server, **body)["choices"][0]
        assert without_ids(choice) == without_ids(streamed(null_server, **body))
        if choice["message"]["content"] is None:
            assert choice["finish_reason"] == "tool_calls"
            calls += choice["message"]["tool_calls"]
        else:
            assert choice["finish_reason"] == "stop"
            assert "tool_calls" not in choice["message"]
            content.append(choice["message"]["content"])
    assert calls
    check(calls)
    for text in content:
        jsonschema.validate(json.loads(text), ADD["parameters"])
    assert content


def test_a_form_may_hold_the_mark_of_a_call(null_server: Server) -> None:
    """It is text there: calls begin with the first character, or there are none."""
    text = '["<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>"]'
    choice = post(null_server, guided_choice=[text], tools=[TOOLS[1]], logit_bias={"75": 100}, temperature=0)
    assert choice["choices"][0]["message"]["content"] == text


def test_a_form_beside_tools_that_may_not_be_called(null_server: Server) -> None:
    asked = {"tool_choice": "none", "guided_choice": ["red", "blue"]}
    assert post(null_server, **asked)["choices"][0]["message"]["content"] in ("red", "blue")
    response = null_server.post("/v1/chat/completions", ASK | {"tool_choice": "none", "guided_regex": "("})
    assert response.json()["error"]["param"] == "guided_regex"


def test_what_parses_calls_is_shown_at_the_start(null_server: Server) -> None:
    log = null_server.log.read_text()
    assert "tool_call_parser" in log
    assert "hermes" in log
