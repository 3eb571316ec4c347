"""POST /v1/embeddings: one vector for each input, as numbers or as base64 of little-endian float32.

Refuses models that declare no pooling (in core), and `dimensions` where the model was not trained to be cut short.
"""

import asyncio
import base64
import time
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from fastapi import FastAPI, Request, Response
from pydantic import Field, field_validator

import core.request
from core.engine.front import Front
from core.errors import CapacityError, DeviceError, RequestError
from core.model.source import ModelSource
from core.request import SequenceOutput, new_request_id
from server.chat import Desk, off_loop_if
from server.errors import EngineDownError, json_response
from server.generation import Engine, unless_gone
from server.responses import encode
from server.routes.body import read
from server.schema import Ids, Text, prompts_of
from server.served import Served
from server.strict import Int, Strict, parse

MAX_INPUTS = 2048  # OpenAI's

_SEVERAL = Field(min_length=1, max_length=MAX_INPUTS)
Inputs = Annotated[list[Text], _SEVERAL] | Annotated[list[Ids], _SEVERAL]


class EmbeddingsBody(Strict):
    """`input` is a text, ids, or a list of either, and becomes a list; `user` has no effect anywhere."""

    model: str
    input: list[str | list[int]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Int | None = None
    priority: Int | None = None
    cache_salt: str | None = None
    user: str | None = None

    @field_validator("input", mode="before", json_schema_input_type=Text | Ids | Inputs)
    @classmethod
    def _input(cls, value: Any) -> Any:
        inputs = prompts_of(value)
        if len(inputs) > MAX_INPUTS:
            raise ValueError(f"{len(inputs)} texts: at most {MAX_INPUTS}; send several requests")
        if len({type(each) for each in inputs}) == 1:
            return inputs
        raise ValueError("must be a text, a list of token ids, or a list of several of one kind; not empty")


class Embedding(msgspec.Struct):
    index: int
    embedding: list[float] | str
    object: str = "embedding"


class EmbeddingUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class Embeddings(msgspec.Struct):
    id: str
    created: int
    model: str
    data: list[Embedding]
    usage: EmbeddingUsage
    object: str = "list"


def add_embeddings(app: FastAPI, engine: Engine, desk: Desk, front: Front, source: ModelSource, served: Served) -> None:
    """Add the route."""

    @app.post("/v1/embeddings")
    async def embeddings(http: Request) -> Response:
        body = parse(await read(http), EmbeddingsBody)
        served.check_model(body.model)
        _check_dimensions(body.dimensions, source)
        name = new_request_id("embd")
        requests = await off_loop_if(sum(map(len, body.input)), lambda: made(body, name))
        outputs = await unless_gone(http.receive, _all(engine, requests))
        data = [Embedding(i, _shown(output.embedding, body)) for i, output in enumerate(outputs)]
        tokens = sum(len(request.prompt_ids) for request in requests)
        reply = Embeddings(name, int(time.time()), body.model, data, EmbeddingUsage(tokens, tokens))
        return json_response(encode(reply))

    def made(body: EmbeddingsBody, name: str) -> list[core.request.Request]:
        return [
            front.embed_request(
                desk.tokenizer.encode(item, add_special_tokens=True) if isinstance(item, str) else item,
                request_id=f"{name}-{i}",
                priority=body.priority or 0,
                cache_salt=body.cache_salt or "",
            )
            for i, item in enumerate(body.input)
        ]


async def _all(engine: Engine, requests: list[core.request.Request]) -> list[SequenceOutput]:
    """Their outputs. Raises: DeviceError, EngineDownError, CapacityError; then the others are aborted."""

    async def one(request: core.request.Request) -> SequenceOutput:
        output = await engine.embed(request)
        if output.finish_reason == "error":
            raise DeviceError(output.error or "the engine could not make this embedding")
        return output

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(request)) for request in requests]
    except* (DeviceError, CapacityError) as errors:
        first = errors.exceptions[0]
        if isinstance(first, DeviceError) and engine.healthy() is not None:
            raise EngineDownError(str(first)) from None
        raise first from None
    return [task.result() for task in tasks]


def _check_dimensions(asked: int | None, source: ModelSource) -> None:
    """Raises: RequestError when the model cannot give vectors of this length."""
    if asked is None:
        return
    size = int(source.config["hidden_size"])
    lengths = source.config.get("matryoshka_dimensions") or []
    any_length = bool(source.config.get("is_matryoshka")) and not lengths
    if asked == size or asked in lengths or (any_length and 0 < asked < size):
        return
    allowed = ", ".join(map(str, sorted({*lengths, size}))) if not any_length else f"1 to {size}"
    raise RequestError(f"dimensions is {asked}: this model's embeddings can have {allowed}", "dimensions")


def _shown(embedding: bytes, body: EmbeddingsBody) -> list[float] | str:
    vector = np.frombuffer(embedding, "<f4")
    if body.dimensions is not None and body.dimensions < len(vector):
        wide = vector[: body.dimensions].astype(np.float64)
        vector = (wide / max(float(np.linalg.norm(wide)), 1e-12)).astype("<f4")
    if body.encoding_format == "base64":
        return base64.b64encode(vector.tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers
