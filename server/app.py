"""The HTTP face: routes, and every error in the one nested shape.

Bodies are read and checked here and not by FastAPI's injection: so a wrong one is 400, never 422, and what
goes on after the client has hung up stays in our hands.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core.errors import CoreError, RequestError
from core.request import SamplingParams, new_request_id
from server.chat import Asked, Desk
from server.errors import UnknownModelError, core_error_response, error_body, json_response
from server.generation import ClientGoneError, Engine, Generation, unless_gone
from server.inspect import add_kv
from server.responses import ModelCard, ModelList, encode
from server.schema import MAX_BODY_BYTES, ChatBody, CompletionBody, StreamOptions, parse
from server.shapes import ChatShape, TextShape
from server.stream import Answer, start_stream


@dataclass(frozen=True)
class Served:
    """What is served: the model's names (the first stands in answers), its limit, and what requests leave out."""

    names: tuple[str, ...]
    root: str
    max_model_len: int
    defaults: SamplingParams


def create_app(engine: Engine, desk: Desk, served: Served) -> ASGIApp:
    """The application. The engine is started and stopped by the caller."""
    app = FastAPI(title="core", docs_url=None, redoc_url=None, openapi_url=None)
    _add_error_handlers(app)
    _add_health(app, engine)
    add_kv(app, engine)
    _add_models(app, served)

    @app.post("/v1/completions")
    async def completions(http: Request) -> Response:
        body = parse(await _read(http), CompletionBody)
        sampling = body.sampling(served.defaults)
        _check_model(body.model, served)
        choices = await desk.completion(body, sampling)
        return await _answer(http, body, TextShape(body, desk.tokenizer), sampling, choices, body.prompt_only)

    @app.post("/v1/chat/completions")
    async def chat_completions(http: Request) -> Response:
        body = parse(await _read(http), ChatBody)
        sampling = body.sampling(served.defaults)
        _check_model(body.model, served)
        choices = await desk.chat(body, sampling)
        return await _answer(http, body, ChatShape(body, desk.tokenizer), sampling, choices)

    async def _answer(
        http: Request,
        body: ChatBody | CompletionBody,
        shape: ChatShape | TextShape,
        sampling: SamplingParams,
        choices: list[Asked],
        prompt_only: bool = False,
    ) -> Response:
        requests = [asked.request for asked in choices]
        generation = Generation(engine, desk.tokenizer, requests, sampling, prompt_only)
        answer = Answer(int(time.time()), body.model, choices, shape, generation)
        if body.stream:
            return await start_stream(http.receive, answer.events(body.stream_options or StreamOptions()))
        return json_response(await unless_gone(http.receive, answer.whole()))

    return RequestIds(app)


def _check_model(asked: str, served: Served) -> None:
    if asked not in served.names:
        raise UnknownModelError(asked, served.names)


async def _read(http: Request) -> bytes:
    raw = bytearray()
    async for part in http.stream():
        raw += part
        if len(raw) > MAX_BODY_BYTES:
            raise RequestError(f"the body is over {MAX_BODY_BYTES} bytes; send a shorter one")
    return bytes(raw)


def _add_health(app: FastAPI, engine: Engine) -> None:
    @app.get("/health")
    async def health() -> Response:
        reason = engine.healthy()
        if reason is None:
            return json_response(b'{"status":"ok"}')
        return json_response(error_body(503, reason, code="engine_not_running"), 503)


def _add_models(app: FastAPI, served: Served) -> None:
    started = int(time.time())
    cards = {name: ModelCard(name, started, served.max_model_len, served.root) for name in served.names}

    @app.get("/v1/models")
    async def models() -> Response:
        return json_response(encode(ModelList(list(cards.values()))))

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        _check_model(name, served)
        return json_response(encode(cards[name]))


def _add_error_handlers(app: FastAPI) -> None:
    def handler(kind: type[Exception]) -> Callable[[Any], Any]:
        return app.exception_handler(kind)

    @handler(CoreError)
    async def core_error(_: Request, error: CoreError) -> Response:
        return core_error_response(error)

    @handler(HTTPException)
    async def http_error(http: Request, error: HTTPException) -> Response:
        message = f"{http.method} {http.url.path}: {error.detail}"
        return json_response(error_body(error.status_code, message), error.status_code, error.headers)

    @handler(ClientDisconnect)
    @handler(ClientGoneError)
    async def client_gone(_: Request, __: Exception) -> Response:
        # Nobody reads this; 499 is what proxies write in their logs.
        return Response(status_code=499)

    @handler(Exception)
    async def defect(_: Request, __: Exception) -> Response:
        return json_response(error_body(500, "internal error; the server's log says more"), 500)


class RequestIds:
    """Gives every response an X-Request-Id: the client's own, or a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        request_id = given or new_request_id("req")

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)
