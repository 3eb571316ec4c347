"""The Responses API over HTTP, mostly by OpenAI's own client, on the null device, which counts on from the last id."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from processes import Server, serve

from server.response_api.asked import ResponseBody, turns_of
from server.response_api.kept import Kept, Shelf
from server.response_api.writer import ResponseWriter
from server.strict import checked

TOOLS: Any = [
    {
        "type": "function",
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"enum": [5]}},
            "required": ["a"],
            "additionalProperties": False,
        },
        "strict": True,
    }
]
ASK: dict[str, Any] = {"model": "smollm2", "input": "Hi", "max_output_tokens": 8, "temperature": 0}


@pytest.fixture(scope="module")
def thinking_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("thinking")
    template = "{% for m in messages %}{{ m.role }}:{{ m.reasoning_content }}{{ m.content }}|{% endfor %}<think>\n"
    (folder / "template.jinja").write_text(template)
    flags = ("--chat-template", str(folder / "template.jinja"))
    with serve(folder, "smollm2", "--device", "null", "--max-model-len", "1K", *flags) as server:
        yield server


def chat_text(server: Server, messages: list[Any], **more: Any) -> str:
    body = {"model": "smollm2", "messages": messages, "max_tokens": 8, "temperature": 0, **more}
    return server.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"]


def test_text(null_server: Server) -> None:
    answer = null_server.openai.responses.create(**ASK, instructions="Be kind.", metadata={"a": "b"})
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    assert answer.output_text == chat_text(null_server, messages)
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (answer.usage.output_tokens, answer.usage.total_tokens) == (8, answer.usage.input_tokens + 8)
    assert answer.instructions == "Be kind."
    assert answer.metadata == {"a": "b"}
    assert null_server.openai.responses.retrieve(answer.id).output_text == answer.output_text


def test_a_conversation_goes_on(null_server: Server) -> None:
    """By its id, or by sending all of it again."""
    client = null_server.openai.responses
    first = client.create(**ASK)
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": first.output_text},
                {"role": "user", "content": "And?"}]  # fmt: skip
    expected = chat_text(null_server, messages)
    assert client.create(**ASK | {"input": "And?", "previous_response_id": first.id}).output_text == expected
    more = {"role": "user", "content": [{"type": "input_text", "text": "And?"}]}
    items: Any = [{"role": "user", "content": "Hi"}, *[item.model_dump() for item in first.output], more]
    assert client.create(**ASK | {"input": items}).output_text == expected


def test_stream_equals_whole(null_server: Server) -> None:
    whole = null_server.openai.responses.create(**ASK).model_dump()
    events = list(null_server.openai.responses.create(**ASK, stream=True))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    kinds = [e.type.removeprefix("response.") for e in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    last = events[-1].response.model_dump()
    assert (
        "".join(e.delta for e in events if e.type == "response.output_text.delta")
        == last["output"][0]["content"][0]["text"]
    )
    for each in (whole, last):
        for name in ("id", "created_at"):
            each.pop(name)
        each["output"][0].pop("id")
        each["usage"]["input_tokens_details"] = None
    assert last == whole


def test_vllms_fields(null_server: Server) -> None:
    """Load generators send them."""
    fields = {"stop": ["x"], "ignore_eos": True, "frequency_penalty": 0.5, "presence_penalty": -1.5}
    fields |= {"repetition_penalty": 1.5, "top_k": 3}
    chat = checked(ASK | fields, ResponseBody).chat([])
    assert {name: getattr(chat, name) for name in fields} == fields
    text = null_server.openai.responses.create(**ASK).output_text
    answer = null_server.openai.responses.create(**ASK, extra_body={"stop": text[4:7]})
    assert (answer.output_text, answer.status) == (text[: text.index(text[4:7])], "completed")


@pytest.mark.parametrize("stream", [False, True])
def test_calls(null_server: Server, stream: bool) -> None:
    client = null_server.openai.responses
    asked = ASK | {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 60}
    if stream:
        events = list(client.create(**asked, stream=True))
        answer = events[-1].response
        arguments = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
        assert arguments == answer.output[0].arguments
    else:
        answer = client.create(**asked)
    assert answer.status == "completed"
    [call] = answer.output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "add", {"a": 5})
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "5"}
    assert client.create(**ASK | {"input": [output], "previous_response_id": answer.id}).output_text


def test_a_named_tool_and_a_form(null_server: Server) -> None:
    client = null_server.openai.responses
    named: Any = {"type": "function", "name": "add"}
    asked = ASK | {"tools": TOOLS, "tool_choice": named, "parallel_tool_calls": False, "max_output_tokens": 60}
    assert client.create(**asked).output[0].name == "add"
    schema = {"type": "json_schema", "name": "five", "schema": {"enum": [5]}, "strict": True}
    assert client.create(**ASK, text={"format": schema}).output_text == "5"


def test_reasoning(thinking_server: Server) -> None:
    client = thinking_server.openai.responses
    [thought] = client.create(**ASK).output
    assert thought.type == "reasoning"
    assert thought.content[0].text
    events = list(client.create(**ASK, stream=True))
    deltas = [e.delta for e in events if e.type == "response.reasoning_text.delta"]
    assert "".join(deltas) == thought.content[0].text
    assert events[-1].response.usage.output_tokens_details.reasoning_tokens == 8
    again = client.create(**ASK | {"input": [{"role": "user", "content": "Hi"}, thought.model_dump(),
                                             {"role": "user", "content": "And?"}]})  # fmt: skip
    assert again.usage.input_tokens > client.create(**ASK).usage.input_tokens + 8


def test_background(null_server: Server) -> None:
    client = null_server.openai.responses
    answer = client.create(**ASK, background=True)
    deadline_s = time.monotonic() + 20
    while client.retrieve(answer.id).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    assert client.retrieve(answer.id).output_text == client.create(**ASK).output_text


def test_cancel(narrow_server: Server) -> None:
    body = ASK | {"model": "smollm2", "max_output_tokens": 8000, "background": True}
    answer = narrow_server.post("/v1/responses", body).json()
    cancelled = narrow_server.post(f"/v1/responses/{answer['id']}/cancel", {}).json()
    assert cancelled["status"] == "cancelled"
    assert narrow_server.get(f"/v1/responses/{answer['id']}").json()["status"] == "cancelled"
    start_s = time.monotonic()
    plain = narrow_server.post("/v1/responses", ASK).json()
    assert plain["usage"]["output_tokens"] == 8
    assert time.monotonic() - start_s < 5
    response = narrow_server.post(f"/v1/responses/{plain['id']}/cancel", {})
    assert response.status_code == 400
    assert "background" in response.json()["error"]["message"]


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"input": []}, "input", "at least one"),
    ({"input": [{"type": "image"}]}, "input", "image"),
    ({"input": [{"role": "user"}]}, "input", "content"),
    ({"input": [{"role": "wizard", "content": "x"}]}, "input", "wizard"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input", "input_image"),
    ({"input": [{"type": "function_call_output", "call_id": "1", "output": "x"}]}, "input", "no message before it"),
    ({"max_output_tokens": 10**6}, "max_output_tokens", "max_output_tokens is 1000000"),
    ({"max_output_tokens": 0}, "max_output_tokens", "at least 1"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "wizard"}}}}, "text", "enforced"),
    ({"text": {"format": {"type": "xml"}}}, "text", "type"),
    ({"text": {"verbosity": "low"}}, "text", "verbosity"),
    ({"reasoning": {"effort": "low"}}, "reasoning", "knows no effort"),
    ({"reasoning": {"summary": "auto"}}, "reasoning", "summary"),
    ({"tools": [{"type": "web_search"}]}, "tools", "function"),
    ({"truncation": "auto"}, "truncation", "leave it out"),
    ({"include": ["reasoning.encrypted_content"]}, "include", "leave it out"),
    ({"conversation": "c"}, "conversation", "leave it out"),
    ({"min_p": 0.1}, "min_p", "not a field"),
    ({"stop": [1]}, "stop", "string"),
    ({"presence_penalty": 3}, "presence_penalty", "3"),
    ({"temperature": 200}, "temperature", "200"),
]


@pytest.mark.parametrize(("more", "param", "words"), WRONG)
def test_refusals(null_server: Server, more: dict[str, Any], param: str, words: str) -> None:
    response = null_server.post("/v1/responses", ASK | more | {"stream": True})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert words in response.json()["error"]["message"]


def test_what_is_not_kept(null_server: Server) -> None:
    answer = null_server.openai.responses.create(**ASK, store=False)
    for response in (null_server.get(f"/v1/responses/{answer.id}"),
                     null_server.post("/v1/responses", ASK | {"previous_response_id": answer.id})):  # fmt: skip
        assert response.status_code == 404
        assert answer.id in response.json()["error"]["message"]
    assert null_server.post("/v1/responses", ASK | {"model": "other"}).status_code == 404
    assert null_server.post("/v1/responses", ASK | {"background": True, "stream": True}).status_code == 400


def test_the_oldest_make_room() -> None:
    def kept(name: str, num_bytes: int) -> Kept:
        body = checked({"model": "m", "input": "x"}, ResponseBody)
        return Kept(ResponseWriter(body, name), [], num_bytes)

    shelf = Shelf(max_kept=3, max_bytes=100)
    for name, size in (("a", 10), ("b", 10), ("c", 10), ("d", 10)):
        shelf.put(kept(name, size))
    assert [bool(shelf.get(name)) for name in "abcd"] == [False, True, True, True]
    shelf.put(kept("e", 85))
    assert [bool(shelf.get(name)) for name in "bcde"] == [False, False, True, True]


def test_what_an_assistant_did_in_a_row_is_one_turn() -> None:
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A"}]}
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "R"}]}
    chat_call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    whole = {"role": "assistant", "reasoning": "R", "content": "A", "tool_calls": [chat_call]}
    assert turns_of([thought, said, call]) == [whole]
    assert turns_of([thought, said, call, thought, said]) == [
        whole,
        {"role": "assistant", "reasoning": "R", "content": "A"},
    ]
    assert turns_of([said, said]) == [{"role": "assistant", "content": "A"}] * 2
    assert turns_of([call, {**call, "call_id": "2"}])[0]["tool_calls"] == [chat_call, {**chat_call, "id": "2"}]
