"""Every field that bodies have: one legal value that is not the default changes what comes back, and a wrong one is a
400 that names field and value. A field that no table here has fails the test.

On the null device the token after the last one has a logit of 5, and all others of 0, before parameters change them.
"""

import json
from typing import Any

import pytest
from processes import Server

from server.conversation import ChatBody
from server.message_api.asked import MessageBody
from server.response_api.asked import ResponseBody
from server.schema import CompletionBody

PATHS = {"/v1/completions": CompletionBody, "/v1/chat/completions": ChatBody}
HI = [{"role": "user", "content": "Hi"}]
GO_ON = [*HI, {"role": "assistant", "content": "Yes"}]
PLAIN: dict[str, Any] = {"model": "smollm2", "max_tokens": 4, "temperature": 0, "return_token_ids": True}
PROMPTS = {"/v1/completions": {"prompt": "Hi there"}, "/v1/chat/completions": {"messages": HI}}
LONG = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
LONG_PROMPTS = {
    "/v1/completions": {"prompt": LONG},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": LONG}]},
}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"enum": [5]}}}}}]

WILD = {"temperature": 5, "seed": 1}
FORCED = {"logit_bias": {"300": 100}}
STOPPED = FORCED | {"stop_token_ids": [300]}
PAIR = {"allowed_token_ids": [300, 350], "logit_bias": {"300": 1.5}}
INSIDE = {"chat_template": "{{ messages[0].content }}<think>", "max_tokens": 40}
CALLED = {"tools": TOOLS, "tool_choice": "required", "temperature": 3, "seed": 2, "max_tokens": 200}
RED = {"enum": ["red"]}

# Field -> what is asked in both requests, and the value that one of them has.
CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "prompt": ({}, "Ho"),
    "messages": ({}, [{"role": "user", "content": "Ho"}]),
    "model": ({}, "other-name"),
    "max_tokens": ({}, 2),
    "max_completion_tokens": ({}, 2),
    "temperature": ({"seed": 1}, 5.0),
    "top_p": (WILD, 0.01),
    "top_k": (WILD, 1),
    "min_p": (WILD, 1.0),
    "seed": (WILD, 2),
    "repetition_penalty": (PAIR | {"logit_bias": {"300": 30, "350": 20}}, 50.0),
    "frequency_penalty": (PAIR, 2.0),
    "presence_penalty": (PAIR, 2.0),
    "logit_bias": ({}, {"300": 100}),
    "bad_words": ({"logit_bias": {"44": 50}}, ["<"]),
    "allowed_token_ids": ({}, [300]),
    "n": ({}, 2),
    "min_tokens": (STOPPED, 3),
    "stop": ({"logit_bias": {"44": 50}}, "<<"),
    "stop_token_ids": (FORCED, [300]),
    "ignore_eos": ({"logit_bias": {"2": 100}}, True),
    "logprobs": ({}, True),
    "top_logprobs": ({"logprobs": True}, 2),
    "logprob_token_ids": ({"logprobs": True}, [300]),
    "prompt_logprobs": ({}, 1),
    "stream": ({}, True),
    "stream_options": ({"stream": True}, {"include_usage": True}),
    "stream_interval": ({"stream": True, "max_tokens": 20}, 5),
    "cache_salt": ({}, "salt"),
    "include_stop_str_in_output": (STOPPED, True),
    "no_stop_trim": (STOPPED, True),
    "skip_special_tokens": ({"logit_bias": {"3": 100}}, False),
    "return_token_ids": ({"return_token_ids": False}, True),
    "return_tokens_as_token_ids": ({"logprobs": True}, True),
    "truncate_prompt_tokens": ({}, 1),
    "truncation_side": ({"truncate_prompt_tokens": 1}, "right"),
    "request_id": ({}, "mine"),
    "chat_template": ({}, "{{ messages[0].content }}!"),
    "chat_template_kwargs": ({}, {"mood": "glad"}),
    "add_generation_prompt": ({}, False),
    "continue_final_message": ({"messages": GO_ON}, True),
    "echo": ({}, True),
    "documents": ({}, [{"text": "one"}]),
    "reasoning_effort": ({}, "low"),
    "include_reasoning": (INSIDE, False),
    "separate_reasoning": (INSIDE, False),
    "thinking_token_budget": (INSIDE, 2),
    "response_format": ({}, {"type": "json_schema", "json_schema": {"name": "x", "schema": RED}}),
    "structured_outputs": ({}, {"choice": ["red"]}),
    "guided_json": ({}, RED),
    "guided_regex": ({}, "red"),
    "guided_choice": ({}, ["red"]),
    "guided_grammar": ({}, 'root ::= "red"'),
    "json_schema": ({}, json.dumps(RED)),
    "regex": ({}, "red"),
    "ebnf": ({}, 'root ::= "red"'),
    "tools": ({}, TOOLS),
    "tool_choice": ({"tools": TOOLS}, "required"),
    "parallel_tool_calls": (CALLED, False),
}

# The same where it differs between the endpoints.
OF_COMPLETIONS: dict[str, tuple[dict[str, Any], Any]] = {
    "logprobs": ({}, 1),
    "logprob_token_ids": ({"logprobs": 0}, [300]),
    "return_tokens_as_token_ids": ({"logprobs": 1}, True),
    "add_special_tokens": ({}, False),
}
OF_CHATS: dict[str, tuple[dict[str, Any], Any]] = {
    "echo": ({"messages": GO_ON, "continue_final_message": True}, True),
    "truncation_side": ({"truncate_prompt_tokens": 3}, "right"),
    "add_special_tokens": ({}, True),
}

WITHOUT = {
    "priority": "changes who comes first: test_fields",
    "user": "is the client's own",
    "spaces_between_special_tokens": "is refused where there would be spaces: test_fields",
}
"""Fields that change nothing in an answer, and why."""

FIELDS = [(path, field) for path, body in PATHS.items() for field in body.model_fields]

FUNCTION = {"type": "function", "name": "f", "parameters": {"properties": {"a": {"enum": [5]}}}}
LETTERS = {
    "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "string", "pattern": "^[acz]+$"}}}
}
RESPONSE: dict[str, Any] = {"model": "smollm2", "input": "Hi", "max_output_tokens": 4, "temperature": 0}
OF_RESPONSES: dict[str, tuple[dict[str, Any], Any]] = {
    "model": ({}, "other-name"),
    "input": ({}, "Hi you"),
    "instructions": ({}, "Be kind."),
    "max_output_tokens": ({}, 2),
    "temperature": ({"seed": 1}, 5.0),
    "top_p": (WILD, 0.01),
    "top_k": (WILD, 1),
    "seed": (WILD, 2),
    "frequency_penalty": (LETTERS, 2.0),
    "presence_penalty": (LETTERS, 2.0),
    "stop": ({}, "="),
    "tools": ({}, [FUNCTION]),
    "tool_choice": ({"tools": [FUNCTION]}, "required"),
    "parallel_tool_calls": (CALLED | {"tools": [FUNCTION], "max_output_tokens": 200, "max_tokens": None}, False),
    "text": ({}, {"format": {"type": "json_schema", "name": "x", "schema": RED}}),
    "reasoning": ({}, {"effort": "low"}),
    "chat_template_kwargs": ({}, {"mood": "glad"}),
    "stream": ({}, True),
    "store": ({}, False),
    "background": ({}, True),
    "metadata": ({}, {"a": "b"}),
    "cache_salt": ({"input": LONG}, "another salt"),
    "user": ({}, "me"),
}
MESSAGE: dict[str, Any] = {"model": "smollm2", "messages": HI, "max_tokens": 4, "temperature": 0}
TOOL = {"name": "f", "input_schema": {"properties": {"a": {"enum": [5]}}}}
OF_MESSAGES: dict[str, tuple[dict[str, Any], Any]] = {
    "model": ({}, "other-name"),
    "messages": ({}, [{"role": "user", "content": "Hi you"}]),
    "system": ({}, "Be kind."),
    "max_tokens": ({}, 2),
    "stop_sequences": ({}, ["="]),
    "temperature": ({}, 5.0),
    "top_p": ({"temperature": 5}, 0.00001),
    "top_k": ({"temperature": 5}, 1),
    "tools": ({}, [TOOL]),
    "tool_choice": ({"tools": [TOOL]}, {"type": "any"}),
    "thinking": ({}, {"type": "disabled"}),
    "output_config": ({}, {"format": {"type": "json_schema", "schema": RED}}),
    "stream": ({}, True),
}
ELSEWHERE = {"previous_response_id", "stream_options", "priority", "ignore_eos", "repetition_penalty"}
"""Of responses. The last two are as in chats: no request for a response can show them on this device."""

APIS = {
    "/v1/responses": (ResponseBody, RESPONSE, OF_RESPONSES, ELSEWHERE),
    "/v1/messages": (MessageBody, MESSAGE, OF_MESSAGES, {"metadata"}),
}
"""Bodies, what is asked, fields, and fields that are left to other tests or change nothing."""


def case(path: str, field: str) -> tuple[dict[str, Any], Any]:
    own = OF_COMPLETIONS if path == "/v1/completions" else OF_CHATS
    return own[field] if field in own else CASES[field]


def answer(server: Server, path: str, body: dict[str, Any], field: str) -> Any:
    """What a client sees, without what is different each time."""
    response = server.post(path, body)
    assert response.status_code == 200, response.text
    if body.get("stream"):
        events = response.text.split("\n\n")[:-2]
        return [{**json.loads(event.removeprefix("data: ")), "id": "", "created": 0} for event in events]
    found = response.json()
    for choice in found["choices"]:
        for call in choice.get("message", {}).get("tool_calls", []):
            call["id"] = ""
    kept = {"model", "choices", "prompt_token_ids", "prompt_logprobs"} | {"cache_salt": {"usage"}}.get(field, set())
    return {name: value for name, value in found.items() if name in kept | ({"id"} if field == "request_id" else set())}


def bodies(path: str, field: str) -> tuple[dict[str, Any], dict[str, Any]]:
    both, value = case(path, field)
    base = PLAIN | (LONG_PROMPTS if field == "cache_salt" else PROMPTS)[path] | both
    return base, base | {field: value}


@pytest.mark.parametrize(("path", "field"), [(path, field) for path, field in FIELDS if field not in WITHOUT])
def test_a_field_has_an_effect(curious_server: Server, path: str, field: str) -> None:
    """Beside the same request without it, which comes out the same twice."""
    base, asked = bodies(path, field)
    first, again, other = (answer(curious_server, path, body, field) for body in (base, base, asked))
    if field not in ("cache_salt", "request_id"):  # whose answers are of one request only
        assert first == again
    assert other != again


@pytest.mark.parametrize(("path", "field"), FIELDS)
def test_a_wrong_value_is_named(curious_server: Server, path: str, field: str) -> None:
    wrong = {"type": "wizard"} if field in ("guided_json", "response_format", "tool_choice") else {"wizard": 1}
    response = curious_server.post(path, PLAIN | PROMPTS[path] | {field: wrong})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == field
    assert field in error["message"]
    assert "wizard" in error["message"]


def test_the_tables_have_no_field_that_is_none() -> None:
    fields = {field for _, field in FIELDS}
    assert {*CASES, *OF_COMPLETIONS, *OF_CHATS, *WITHOUT} == fields


def told(server: Server, path: str, body: dict[str, Any]) -> Any:
    """What a client of one of the other APIs sees, without ids and times; in streams the kinds of events."""
    response = server.post(path, {name: value for name, value in body.items() if value is not None})
    assert response.status_code == 200, response.text
    if body.get("stream"):
        return [line for line in response.text.splitlines() if line.startswith("event: ")]
    found = response.json()
    items = found.get("output", found.get("content"))
    kept = {name: found[name] for name in ("model", "metadata", "user", "store", "status", "usage") if name in found}
    return kept, [{name: each.get(name) for name in ("type", "content", "text", "arguments")} for each in items]


@pytest.mark.parametrize(("path", "field"), [(path, field) for path, api in APIS.items() for field in api[2]])
def test_a_field_of_another_api_has_an_effect(curious_server: Server, path: str, field: str) -> None:
    _, base, cases, _ = APIS[path]
    both, value = cases[field]
    asked = base | {name: each for name, each in both.items() if name != "max_tokens"}
    told(curious_server, path, asked)  # whose prompt is cached from now on
    first, other = (told(curious_server, path, body) for body in (asked, asked | {field: value}))
    assert other != first


@pytest.mark.parametrize(("path", "field"), [(path, f) for path, api in APIS.items() for f in api[0].model_fields])
def test_a_wrong_value_of_another_api_is_named(curious_server: Server, path: str, field: str) -> None:
    wrong = {"type": "wizard"} if field in ("tool_choice", "thinking") else {"wizard": 1}
    response = curious_server.post(path, APIS[path][1] | {field: wrong})
    assert response.status_code == 400
    assert field in response.json()["error"]["message"]
    assert "wizard" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", APIS)
def test_the_tables_of_other_apis_are_whole(path: str) -> None:
    body, _, cases, others = APIS[path]
    assert {*cases, *others} == {*body.model_fields}
