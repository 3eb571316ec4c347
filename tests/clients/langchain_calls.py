"""What langchain-openai makes of a server: writes one JSON object of what came out of each call.

python langchain_calls.py URL KEY EMBEDDER_URL, with URLs that end in /v1; temperature 0 everywhere.
"""

import asyncio
import json
import sys
from typing import Any, Literal

import openai
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field, SecretStr

HI: list[BaseMessage] = [SystemMessage("Be brief."), HumanMessage("Say hi")]
SUM: list[BaseMessage] = [HumanMessage("What is 2 + 3?")]
TOM = "Tom is 30 years old and in a good mood."


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=130)
    mood: Literal["good", "bad"]


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def plain(llm: ChatOpenAI) -> dict[str, Any]:
    """Each way to ask the same."""

    async def astream() -> list[str]:
        return [str(chunk.content) async for chunk in llm.astream(HI)]

    answer = llm.invoke(HI)
    chunks = list(llm.stream(HI))
    usages = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    return {
        "invoke": answer.content,
        "usage": answer.usage_metadata,
        "finish_reason": answer.response_metadata["finish_reason"],
        "stream": [str(chunk.content) for chunk in chunks],
        "stream_usage": usages,
        "astream": asyncio.run(astream()),
        "batch": [each.content for each in llm.batch([HI, SUM])],
    }


def tools(llm: ChatOpenAI) -> dict[str, Any]:
    """A call, its result, and the answer after it; a named tool; a stream of a call."""
    call = llm.bind_tools([add], tool_choice="any", parallel_tool_calls=False).invoke(SUM)
    results = [add.invoke(each) for each in call.tool_calls]
    named = llm.bind_tools([add], tool_choice="add", strict=True)
    chunks = list(named.stream(SUM))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    return {
        "calls": [each["args"] for each in call.tool_calls],
        "results": [each.content for each in results],
        "after": llm.bind_tools([add]).invoke([*SUM, call, *results]).usage_metadata,
        "named_stream": [{"name": each["name"], "args": each["args"]} for each in whole.tool_calls],
    }


def forms(llm: ChatOpenAI) -> dict[str, Any]:
    """Objects of a class, by each method that has one."""
    return {
        "json_schema": llm.with_structured_output(Person, method="json_schema").invoke(TOM).model_dump(),
        "function_calling": llm.with_structured_output(Person, method="function_calling").invoke(TOM).model_dump(),
        "json_schema_stream": list(llm.with_structured_output(Person.model_json_schema()).stream(TOM))[-1],
    }


def refused(llm: ChatOpenAI) -> str:
    """How a field that the server does not know comes back."""
    try:
        llm.invoke(HI, extra_body={"wizard": 1})
    except openai.BadRequestError as error:
        return str(error)
    return ""


def main(url: str, key: str, embedder_url: str) -> None:
    """Everything, one after the other."""
    access = {"base_url": url, "api_key": SecretStr(key), "model": "smollm2", "max_retries": 0}
    llm = ChatOpenAI(**access, temperature=0, max_tokens=80, stream_usage=True)
    by_responses = ChatOpenAI(**access, temperature=0, max_tokens=80, use_responses_api=True)
    vectors = OpenAIEmbeddings(
        base_url=embedder_url, api_key=SecretStr(key), model="tiny", check_embedding_ctx_length=False
    )
    found = {
        **plain(llm),
        **tools(llm),
        **forms(llm),
        "refused": refused(llm),
        "responses": by_responses.invoke(HI).text,
        "responses_stream": [chunk.text for chunk in by_responses.stream(HI)],
        "responses_form": by_responses.with_structured_output(Person).invoke(TOM).model_dump(),
        "completion": OpenAI(**access, temperature=0, max_tokens=6).invoke("The capital of France is"),
        "vectors": vectors.embed_documents(["the quick brown fox", "hello world"]),
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
