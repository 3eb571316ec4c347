"""The server process: it listens, starts the engine process, and ends when told to or when the engine is dead.

At SIGTERM or SIGINT it takes nothing more, lets what runs finish as long as it may, then fails the rest in words and
ends; at the second one at once. This process never imports torch. Exit codes: 0 after a signal, 1 when the engine died
and was not to be restarted; what cannot be started at all is a CoreError.
"""

import asyncio
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import uvicorn
from starlette.types import ASGIApp

from core.config import EngineConfig
from core.engine.client import EngineClient
from core.engine.front import Front
from server import defaults
from server.app import Door, House, create_app
from server.dialect import Wishes, resolve
from server.door import Drain
from server.gate import Gate, Limits
from server.listen import Address
from server.logs import Format, Log, open_log
from server.metrics import Record
from server.models import open_model
from server.served import Served

FAILURE_LINGER_S = 3.0
"""How long a server with a dead engine still answers 503, so that probes and clients see why it goes."""

FAREWELL_S = 2
"""How long requests that were failed may take to be told so."""

KEEP_ALIVE_S = 75
"""How long an idle connection stays open: longer than clients keep theirs (httpx 5 s, aiohttp 15 s, nginx 60 s): one
that is closed just when its client sends again is an error at the client."""

CUT_SHORT = "the server was shut down before this request was done"


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to serve.

    names                the model's, for clients
    generation_config    see `server.defaults.resolve`, with its override
    wishes               how the model talks
    shutdown_timeout_s   how long running requests may take to finish when the server is told to stop
    """

    address: Address
    names: tuple[str, ...]
    on_failure: Literal["exit", "restart"]
    generation_config: defaults.Mode
    override: str
    wishes: Wishes = field(default_factory=Wishes)
    door: Door = field(default_factory=Door)
    limits: Limits = field(default_factory=Limits)
    shutdown_timeout_s: float = 5.0
    log_format: Format = "text"


def run(config: EngineConfig, options: Options) -> int:
    """Serve until told to stop. Returns the exit code. Raises: CoreError when nothing could be started."""
    options.address.check()
    with options.address.bind() as listener:
        try:
            return asyncio.run(_until_signalled(serve(config, listener, options)))
        finally:
            options.address.clean_up()


async def serve(config: EngineConfig, listener: socket.socket, options: Options) -> int:
    """Serve on a bound socket until a signal, or until it is cancelled. As `run`."""
    source = open_model(config.model)
    sampling, decided = defaults.resolve(source, options.generation_config, options.override)
    dialect, spoken = resolve(source, options.wishes)
    log = open_log(options.log_format)
    client = await EngineClient.start(config, options.on_failure, json_logs=options.log_format == "json")
    try:
        info, record, drain = client.info, Record(), Drain()
        log.plan(info, [*decided, *spoken])
        if not (options.address.is_local or options.door.keys):
            log.warn(f"anybody who reaches {options.address.host} may use this server: give --api-key to prevent it")
        app = create_app(
            House(
                engine=Gate(client, options.limits, record),
                source=source,
                front=Front(info, source.eos_ids, source.tokenizer().encode),
                dialect=dialect,
                info=info,
                served=Served(options.names, config.model, info.max_model_len, sampling),
                record=record,
                drain=drain,
                door=options.door,
                log=log.request,
            )
        )
        return await _answer(_Server(app, options, log), listener, client, drain, options.shutdown_timeout_s)
    finally:
        await client.stop()


class _Server(uvicorn.Server):
    """uvicorn, except that signals are ours: its handlers end the process before the engine can be stopped."""

    def __init__(self, app: ASGIApp, options: Options, log: Log) -> None:
        address = options.address
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                ws="none",
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=FAREWELL_S,
                timeout_keep_alive=KEEP_ALIVE_S,
                ssl_keyfile=address.ssl_keyfile,
                ssl_certfile=address.ssl_certfile,
                log_config=None if options.log_format == "json" else uvicorn.config.LOGGING_CONFIG,
            )
        )
        self._name = options.names[0]
        self._address = address
        self.log = log

    def stop(self) -> None:
        self.should_exit = True

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        assert sockets
        self.log.serving(self._name, self._address.url(sockets[0]))


async def _answer(
    server: _Server, listener: socket.socket, client: EngineClient, drain: Drain, timeout_s: float
) -> int:
    tasks = [asyncio.create_task(_stop_when_failed(server, client))]

    def stop() -> None:
        if drain.reason:
            client.fail(CUT_SHORT)
            server.stop()
            return
        drain.begin("the server is shutting down")
        tasks.append(asyncio.create_task(_drain(server, client, drain, timeout_s)))

    with _signals(stop):
        await server.serve([listener])
    for task in tasks:
        task.cancel()
    if client.failed.is_set():
        server.log.fail(client.healthy() or "the engine failed")
        return 1
    return 0


async def _drain(server: _Server, client: EngineClient, drain: Drain, timeout_s: float) -> None:
    """Let what runs finish, fail what does not in time, and end."""
    if not await drain.idle(timeout_s):
        client.fail(CUT_SHORT)
        await drain.idle(FAREWELL_S)
    server.stop()


async def _stop_when_failed(server: _Server, client: EngineClient) -> None:
    await client.failed.wait()
    await asyncio.sleep(FAILURE_LINGER_S)
    server.stop()


async def _until_signalled(work: Coroutine[Any, Any, int]) -> int:
    """Run `work`, cancelling it at a SIGINT or SIGTERM that it does not handle itself."""
    task = asyncio.ensure_future(work)
    with _signals(task.cancel):
        try:
            return await task
        except asyncio.CancelledError:
            return 0


@contextmanager
def _signals(stop: Callable[[], Any]) -> Iterator[None]:
    """Call `stop` at SIGINT or SIGTERM."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
