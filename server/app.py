"""The HTTP face put together: layers, routes, and every error in the shape that its clients know.

Bodies are read and checked by routes and not by FastAPI's injection: so a wrong one is 400, never 422, and what
goes on after the client has hung up stays in our hands.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from core.engine.front import Front, ReadyInfo
from core.errors import CoreError
from core.model.source import ModelSource
from server.chat import Desk
from server.dialect import Dialect
from server.door import Drain, Draining, Entry, Journal, Keys
from server.errors import core_error_response, error_response
from server.exposition import Exposition
from server.generation import ClientGoneError, Engine
from server.metrics import Record
from server.openapi import add_openapi
from server.routes.body import MAX_BODY_BYTES
from server.routes.embeddings import add_embeddings
from server.routes.generate import add_generation
from server.routes.health import add_health
from server.routes.kv import add_kv
from server.routes.messages import add_messages
from server.routes.metrics import add_metrics
from server.routes.models import add_models
from server.routes.page import add_page
from server.routes.responses import add_responses
from server.routes.tokens import add_tokens
from server.served import Served


@dataclass(frozen=True, kw_only=True)
class Door:
    """Who may come in, and with how much.

    keys           API keys; none: everybody may
    origins        of web pages in browsers that may call; "*" is all of them
    credentials    such pages may send cookies and the like
    methods, headers   that such pages may use
    old_metric_names   metrics also under vLLM's former names
    """

    keys: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    credentials: bool = False
    methods: tuple[str, ...] = ("*",)
    headers: tuple[str, ...] = ("*",)
    max_body_bytes: int = MAX_BODY_BYTES
    old_metric_names: bool = False


@dataclass(frozen=True, kw_only=True)
class House:
    """What routes are made from. The engine is started and stopped by the caller."""

    engine: Engine
    source: ModelSource
    front: Front
    dialect: Dialect
    info: ReadyInfo
    served: Served
    record: Record
    drain: Drain
    door: Door = field(default_factory=Door)
    log: Callable[[Entry], None] = lambda _: None


def create_app(house: House) -> ASGIApp:
    """The application."""
    app = FastAPI(title="core", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.max_body_bytes = house.door.max_body_bytes
    _add_error_handlers(app)
    _add_routes(app, house)
    return _behind_door(app, house)


def _add_routes(app: FastAPI, house: House) -> None:
    engine, served = house.engine, house.served
    desk = Desk(house.source, house.front, served.max_model_len, house.dialect)
    add_health(app, engine, house.drain)
    add_models(app, served)
    add_generation(app, engine, desk, served, house.record)
    add_responses(app, engine, desk, served, house.record, house.drain)
    add_messages(app, engine, desk, served, house.record)
    add_tokens(app, desk, served)
    add_embeddings(app, engine, desk, house.front, house.source, served)
    add_kv(app, engine)
    add_metrics(app, engine, _exposition(house))
    add_page(app, house.info, served)
    add_openapi(app, served, house.info, has_keys=bool(house.door.keys))


def _exposition(house: House) -> Exposition:
    info = house.info
    values = {name: value for name, value, _ in info.plan}
    cache = {
        "block_size": str(info.page_tokens),
        "num_gpu_blocks": str(info.num_kv_blocks),
        "enable_prefix_caching": str(info.prefix_caching),
        "gpu_memory_utilization": values["memory_utilization"],
        "cache_dtype": values["dtype"],
    }
    labels = {"model_name": house.served.names[0], "engine": "0"}
    return Exposition(house.record, labels, cache, house.door.old_metric_names)


def _behind_door(app: ASGIApp, house: House) -> ASGIApp:
    """The layers of `server.door`, innermost first."""
    door = house.door
    app = Draining(app, house.drain)
    if door.keys:
        app = Keys(app, door.keys)
    if door.origins:
        app = CORSMiddleware(
            app,
            allow_origins=door.origins,
            allow_credentials=door.credentials,
            allow_methods=door.methods,
            allow_headers=door.headers,
            expose_headers=("X-Request-Id", "Retry-After"),
        )

    def done(entry: Entry) -> None:
        house.record.answered(entry)
        house.log(entry)

    return Journal(app, done)


def _add_error_handlers(app: FastAPI) -> None:
    def handler(kind: type[Exception]) -> Callable[[Any], Any]:
        return app.exception_handler(kind)

    @handler(CoreError)
    async def core_error(http: Request, error: CoreError) -> Response:
        return core_error_response(http.url.path, error)

    @handler(HTTPException)
    async def http_error(http: Request, error: HTTPException) -> Response:
        message = f"{http.method} {http.url.path}: {error.detail}"
        return error_response(http.url.path, error.status_code, message, headers=error.headers)

    @handler(ClientDisconnect)
    @handler(ClientGoneError)
    async def client_gone(_: Request, __: Exception) -> Response:
        # Nobody reads this; 499 is what proxies write in their logs.
        return Response(status_code=499)

    @handler(Exception)
    async def defect(http: Request, _: Exception) -> Response:
        return error_response(http.url.path, 500, "internal error; the server's log says more")
