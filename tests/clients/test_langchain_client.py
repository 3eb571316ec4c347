"""langchain-openai before smollm2: what `langchain_calls.py` got, beside what the server says by itself."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server.processes import Server

pytestmark = pytest.mark.heavy

SCRIPT = str(Path(__file__).parent / "langchain_calls.py")
HI = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hi"}]


@pytest.fixture(scope="module")
def got(server: Server, embedder: Server, run_client: Callable[..., str]) -> dict[str, Any]:
    printed = run_client("python", SCRIPT, f"{server.base_url}/v1", server.key, f"{embedder.base_url}/v1")
    answers: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return answers


def test_every_way_to_ask(server: Server, got: dict[str, Any]) -> None:
    body = {"model": "smollm2", "messages": HI, "max_tokens": 80, "temperature": 0}
    expected = server.post("/v1/chat/completions", body).json()
    text = expected["choices"][0]["message"]["content"]
    assert text
    ways = ("invoke", "stream", "astream", "responses", "responses_stream")
    assert [way for way in ways if "".join(got[way]) != text] == []
    assert got["batch"][0] == text
    assert got["batch"][1] not in ("", text)
    assert got["finish_reason"] == expected["choices"][0]["finish_reason"]
    assert len(got["stream"]) > 5


def test_usage(server: Server, got: dict[str, Any]) -> None:
    usage = got["usage"]
    assert [each["total_tokens"] for each in got["stream_usage"]] == [usage["total_tokens"]]
    assert usage["input_tokens"] + usage["output_tokens"] == usage["total_tokens"]
    counted = server.post("/tokenize", {"messages": HI}).json()["count"]
    assert usage["input_tokens"] == counted


def test_tools(got: dict[str, Any]) -> None:
    [args] = got["calls"]
    assert got["results"] == [str(args["a"] + args["b"])]
    assert got["after"]["output_tokens"] > 0
    assert got["named_stream"]
    assert all(call["name"] == "add" and call["args"].keys() == {"a", "b"} for call in got["named_stream"])


def test_forms(got: dict[str, Any]) -> None:
    for way in ("json_schema", "function_calling", "json_schema_stream", "responses_form"):
        person = got[way]
        assert person.keys() == {"name", "age", "mood"}, way
        assert 0 <= person["age"] <= 130
        assert person["mood"] in ("good", "bad")


def test_the_rest(embedder: Server, got: dict[str, Any]) -> None:
    assert "wizard" in got["refused"]
    assert got["completion"].startswith(" Paris")
    asked = {"model": "tiny", "input": ["the quick brown fox", "hello world"]}
    data = embedder.post("/v1/embeddings", asked).json()["data"]
    assert got["vectors"] == [pytest.approx(each["embedding"], abs=1e-6) for each in data]
