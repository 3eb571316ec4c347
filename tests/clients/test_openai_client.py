"""OpenAI's client before smollm2: chats, streams, tools, responses, forms as pydantic models, embeddings, errors."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import openai
import pytest
from pydantic import BaseModel, Field

from tests.server.processes import Server, serve

pytestmark = pytest.mark.heavy

HI = "Say hi in three words"
ASK: dict[str, Any] = {
    "model": "smollm2",
    "messages": [{"role": "user", "content": HI}],
    "temperature": 0,
    "max_tokens": 40,
}


class Add(BaseModel):
    """Add two numbers."""

    a: int = Field(ge=0, le=99)
    b: int = Field(ge=0, le=99)


class Address(BaseModel):
    city: str = Field(max_length=12)
    zip: str | None = Field(max_length=6)


class Person(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=130)
    mood: Literal["good", "bad"]
    homes: list[Address] = Field(max_length=2)


ADD: Any = openai.pydantic_function_tool(Add, name="add")
SUM: Any = [{"role": "user", "content": "What is 2 + 3?"}]
TOM = "Tom is 30 years old, in a good mood, and lives in Paris."


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return server.openai


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Takes one sequence at a time, and lets one more wait."""
    args = ("--device", "null", "--max-num-seqs", "1", "--max-num-queued-reqs", "1", "--api-key", "k")
    with serve(tmp_path_factory.mktemp("busy"), "smollm2", *args, key="k") as started:
        yield started


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["smollm2"]
    assert client.models.retrieve("smollm2").id == "smollm2"


def test_chat_and_stream(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**ASK)
    text = whole.choices[0].message.content
    assert text
    assert whole.choices[0].finish_reason == "stop"
    chunks = list(client.chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == text
    assert (chunks[-1].choices, chunks[-1].usage.total_tokens) == ([], whole.usage.total_tokens)
    with client.chat.completions.stream(**ASK, logprobs=True) as events:
        deltas = [event.delta for event in events if event.type == "content.delta"]
        final = events.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content == text
    assert len(final.choices[0].logprobs.content) in (whole.usage.completion_tokens, whole.usage.completion_tokens - 1)


def test_many_at_once(server: Server) -> None:
    async def ask() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{server.base_url}/v1", api_key=server.key, max_retries=0) as client:
            answers = await asyncio.gather(*(client.chat.completions.create(**ASK) for _ in range(4)))
        return [answer.choices[0].message.content for answer in answers]

    assert all(asyncio.run(ask()))


@pytest.mark.parametrize("stream", [False, True])
def test_tools(client: openai.OpenAI, stream: bool) -> None:
    """A call, its result, and the answer after it."""
    asked = ASK | {"messages": SUM, "tools": [ADD], "tool_choice": "required", "max_tokens": 80}
    asked["parallel_tool_calls"] = False
    if stream:
        with client.chat.completions.stream(**asked) as events:
            [done] = [event for event in events if event.type == "tool_calls.function.arguments.done"]
            message = events.get_final_completion().choices[0].message
        assert done.parsed_arguments == message.tool_calls[0].function.parsed_arguments
    else:
        choice = client.chat.completions.parse(**asked).choices[0]
        message = choice.message
        assert choice.finish_reason == "tool_calls"
    [call] = message.tool_calls
    numbers = call.function.parsed_arguments
    assert isinstance(numbers, Add)
    result = {"role": "tool", "tool_call_id": call.id, "content": str(numbers.a + numbers.b)}
    answer = client.chat.completions.create(**ASK | {"messages": [*SUM, message, result], "tools": [ADD]})
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")
    assert answer.usage.completion_tokens > 0


def test_forms(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": TOM}]
    asked: Any = {"model": "smollm2", "messages": messages, "temperature": 0, "response_format": Person}
    parsed = client.chat.completions.parse(**asked).choices[0].message.parsed
    assert isinstance(parsed, Person)
    with client.chat.completions.stream(**asked) as events:
        final = events.get_final_completion()
    assert final.choices[0].message.parsed == parsed
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**asked, max_tokens=3)
    assert client.responses.parse(model="smollm2", input=TOM, temperature=0, text_format=Person).output_parsed == parsed


def test_responses(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "smollm2", "temperature": 0, "max_output_tokens": 40}
    whole = client.responses.create(**asked, input=HI)
    assert whole.output_text == client.chat.completions.create(**ASK).choices[0].message.content
    with client.responses.stream(**asked, input=HI) as events:
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        final = events.get_final_response()
    assert "".join(deltas) == final.output_text == whole.output_text
    assert client.responses.retrieve(whole.id).output_text == whole.output_text
    more = client.responses.create(**asked, input="And?", previous_response_id=whole.id)
    assert more.usage.input_tokens > whole.usage.input_tokens


def test_a_response_in_the_background(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "smollm2", "input": "Count to 1000", "background": True}
    answer = client.responses.create(**asked, extra_body={"ignore_eos": True})
    assert answer.status in ("queued", "in_progress")
    assert client.responses.cancel(answer.id).status == "cancelled"
    assert client.responses.retrieve(answer.id).status == "cancelled"
    answer = client.responses.create(**asked, max_output_tokens=4)
    deadline_s = time.monotonic() + 30
    while (now := client.responses.retrieve(answer.id)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    assert (now.status, now.usage.output_tokens) == ("incomplete", 4)


def test_tools_of_responses(client: openai.OpenAI) -> None:
    tool: Any = openai.pydantic_function_tool(Add, name="add")["function"] | {"type": "function"}
    asked: dict[str, Any] = {"model": "smollm2", "temperature": 0, "tools": [tool], "parallel_tool_calls": False}
    answer = client.responses.parse(**asked, input=SUM, tool_choice="required")
    [call] = answer.output
    assert call.type == "function_call"
    numbers = Add.model_validate_json(call.arguments)
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": str(numbers.a + numbers.b)}
    asked["max_output_tokens"] = 12
    after = client.responses.create(**asked, input=[result], previous_response_id=answer.id)
    assert after.usage.input_tokens > answer.usage.input_tokens
    assert after.output
    again = client.responses.create(**asked, input=[*SUM, *answer.output, result])
    assert again.usage.input_tokens == after.usage.input_tokens


def test_completions(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "smollm2", "prompt": "The capital of France is", "temperature": 0}
    whole = client.completions.create(**asked, max_tokens=6, logprobs=2, echo=True)
    assert whole.choices[0].text.startswith("The capital of France is Paris")
    assert len(whole.choices[0].logprobs.tokens) == whole.usage.total_tokens
    pieces = [chunk.choices[0].text for chunk in client.completions.create(**asked, max_tokens=6, stream=True)]
    assert asked["prompt"] + "".join(pieces) == whole.choices[0].text


def test_embeddings(embedder: Server) -> None:
    texts = ["the quick brown fox", "hello world"]
    coded = embedder.openai.embeddings.create(model="tiny", input=texts).data
    plain = embedder.openai.embeddings.create(model="tiny", input=texts, encoding_format="float").data
    for one, other in zip(coded, plain, strict=True):
        np.testing.assert_allclose(one.embedding, other.embedding, atol=1e-6)
        assert abs(float(np.linalg.norm(one.embedding)) - 1) < 1e-5


@pytest.mark.parametrize(
    ("kind", "status", "more"),
    [
        (openai.BadRequestError, 400, {"top_p": 9}),
        (openai.BadRequestError, 400, {"stream": True, "max_tokens": 10**6}),
        (openai.BadRequestError, 400, {"extra_body": {"wizard": 1}}),
        (openai.NotFoundError, 404, {"model": "other"}),
    ],
)
def test_errors(client: openai.OpenAI, kind: type[openai.APIStatusError], status: int, more: dict[str, Any]) -> None:
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**ASK | more)
    assert caught.value.status_code == status
    assert caught.value.param in ("top_p", "max_tokens", "wizard", "model")
    assert str(caught.value.param) in caught.value.message


def test_a_wrong_key(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError):
            stranger.models.list()
        with pytest.raises(openai.AuthenticationError):
            stranger.chat.completions.create(**ASK, stream=True)


def test_a_full_queue_and_patience(busy: Server) -> None:
    """What is refused is a rate limit; a client that retries by itself gets its answer once there is room."""
    client = busy.openai
    two = ASK | {"n": 2}
    with ThreadPoolExecutor(1) as pool:
        long = ASK | {"max_tokens": 8000, "extra_body": {"ignore_eos": True}}
        with client.chat.completions.create(**long, stream=True) as running:
            next(iter(running))
            with pytest.raises(openai.RateLimitError) as caught:
                client.chat.completions.create(**two)
            assert int(caught.value.response.headers["Retry-After"]) >= 1
            with pytest.raises(openai.APITimeoutError):
                client.with_options(timeout=0.2).chat.completions.create(**ASK)
            patient = pool.submit(client.with_options(max_retries=5).chat.completions.create, **two)
        assert len(patient.result().choices) == 2
