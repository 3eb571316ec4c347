"""POST /v1/completions and /v1/chat/completions."""

import time

from fastapi import FastAPI, Request, Response

from core.request import SamplingParams
from server.chat import Asked, Desk
from server.conversation import ChatBody
from server.errors import json_response
from server.generation import Engine, Generation, unless_gone
from server.metrics import Record
from server.routes.body import read
from server.schema import CompletionBody, StreamOptions
from server.served import Served
from server.shapes import ChatShape, TextShape
from server.stream import Answer, start_stream
from server.strict import parse


def add_generation(app: FastAPI, engine: Engine, desk: Desk, served: Served, record: Record) -> None:
    """Add the routes."""

    @app.post("/v1/completions")
    async def completions(http: Request) -> Response:
        body = parse(await read(http), CompletionBody)
        sampling = body.sampling(served.defaults)
        served.check_model(body.model)
        with body.wording():
            choices = await desk.completion(body, sampling)
            return await answer(http, body, TextShape(body, desk.tokenizer), sampling, choices, body.prompt_only)

    @app.post("/v1/chat/completions")
    async def chat_completions(http: Request) -> Response:
        body = parse(await read(http), ChatBody)
        sampling = body.sampling(served.defaults)
        served.check_model(body.model)
        with body.wording():
            choices = await desk.chat(body, sampling)
            return await answer(http, body, ChatShape(body, desk.tokenizer), sampling, choices)

    async def answer(
        http: Request,
        body: ChatBody | CompletionBody,
        shape: ChatShape | TextShape,
        sampling: SamplingParams,
        choices: list[Asked],
        prompt_only: bool = False,
    ) -> Response:
        record.asked(sampling.n, sampling.max_tokens)
        generation = Generation(engine, desk.tokenizer, choices, sampling, prompt_only)
        made = Answer(int(time.time()), body, choices, shape, generation)
        if body.stream:
            return await start_stream(http.receive, made.events(body.stream_options or StreamOptions()))
        return json_response(await unless_gone(http.receive, made.whole()))
