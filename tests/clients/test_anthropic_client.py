"""Anthropic's client before smollm2: messages, streams, tools, forms, counts, errors."""

import asyncio
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import pytest
from pydantic import BaseModel

from tests.server.processes import Server

pytestmark = pytest.mark.heavy

ASK: dict[str, Any] = {
    "model": "smollm2",
    "max_tokens": 12,
    "messages": [{"role": "user", "content": "Say hi"}],
    "extra_body": {"temperature": 0},
}
ADD: Any = {
    "name": "add",
    "description": "Adds two numbers.",
    "input_schema": {
        "type": "object",
        "properties": {name: {"type": "integer", "minimum": 0, "maximum": 99} for name in "ab"},
        "required": ["a", "b"],
    },
}


class Person(BaseModel):
    name: Literal["Tom", "Ann"]
    age: int
    mood: Literal["good", "bad"]


SUM: Any = [{"role": "user", "content": "What is 2 + 3?"}]


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.base_url, api_key=server.key, max_retries=0, timeout=60) as made:
        yield made


def test_messages_and_streams(server: Server, client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**ASK)
    [block] = whole.content
    assert block.text
    assert (whole.stop_reason, whole.usage.output_tokens) == ("max_tokens", 12)
    with client.messages.stream(**ASK) as stream:
        assert "".join(stream.text_stream) == block.text
        final = stream.get_final_message()
    assert (final.content[0].text, final.stop_reason) == (block.text, whole.stop_reason)
    assert final.usage.output_tokens == 12

    async def ask() -> str:
        async with (
            anthropic.AsyncAnthropic(base_url=server.base_url, auth_token=server.key, max_retries=0) as other,
            other.messages.stream(**ASK) as stream,
        ):
            return "".join([text async for text in stream.text_stream])

    assert asyncio.run(ask()) == block.text


def test_stop_sequences_and_system(client: anthropic.Anthropic) -> None:
    text = client.messages.create(**ASK, system="You are a pirate.").content[0].text
    answer = client.messages.create(**ASK, system="You are a pirate.", stop_sequences=[text[3:8]])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", text[3:8])
    assert answer.content[0].text == text[: text.index(text[3:8])]


@pytest.mark.parametrize("stream", [False, True])
def test_tools(client: anthropic.Anthropic, stream: bool) -> None:
    """A call, its result, and the answer after it."""
    choice: Any = {"type": "any", "disable_parallel_tool_use": True}
    asked = ASK | {"messages": SUM, "tools": [ADD], "tool_choice": choice, "max_tokens": 80}
    if stream:
        with client.messages.stream(**asked) as events:
            answer = events.get_final_message()
    else:
        answer = client.messages.create(**asked)
    assert answer.stop_reason == "tool_use"
    [call] = answer.content
    assert (call.type, call.name, call.input.keys()) == ("tool_use", "add", {"a", "b"})
    assert all(0 <= number <= 99 for number in call.input.values())
    result = {"type": "tool_result", "tool_use_id": call.id, "content": str(sum(call.input.values()))}
    turns = [*SUM, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    after = client.messages.create(**ASK | {"messages": turns, "tools": [ADD], "tool_choice": {"type": "none"}})
    assert after.content[0].text
    assert after.usage.output_tokens <= 12


def test_forms(client: anthropic.Anthropic) -> None:
    asked: Any = {"model": "smollm2", "max_tokens": 80, "extra_body": {"temperature": 0}, "output_format": Person}
    messages: Any = [{"role": "user", "content": "Tom is 30 years old and in a good mood."}]
    parsed = client.messages.parse(**asked, messages=messages).parsed_output
    assert isinstance(parsed, Person)
    with client.messages.stream(**asked, messages=messages) as stream:
        assert stream.get_final_message().parsed_output == parsed


def test_counts(client: anthropic.Anthropic) -> None:
    more: Any = {"messages": SUM, "tools": [ADD], "system": "Be brief."}
    counted = client.messages.count_tokens(model="smollm2", **more).input_tokens
    usage = client.messages.create(**ASK | more).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert counted > client.messages.count_tokens(model="smollm2", messages=SUM).input_tokens


@pytest.mark.parametrize(
    ("kind", "words", "more"),
    [
        (anthropic.BadRequestError, "max_tokens", {"max_tokens": 10**6}),
        (anthropic.BadRequestError, "wizard", {"extra_body": {"wizard": 1}}),
        (anthropic.NotFoundError, "other", {"model": "other"}),
    ],
)
def test_errors(client: anthropic.Anthropic, kind: type[Exception], words: str, more: dict[str, Any]) -> None:
    with pytest.raises(kind, match=words):
        client.messages.create(**ASK | more)
    with pytest.raises(kind, match=words), client.messages.stream(**ASK | more):
        pass


def test_a_wrong_key(server: Server) -> None:
    with (
        anthropic.Anthropic(base_url=server.base_url, api_key="wrong", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError),
    ):
        stranger.messages.create(**ASK)
