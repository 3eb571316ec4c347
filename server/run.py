"""The server process: it listens, starts the engine process, and ends when told to or when the engine is dead.

This process never imports torch. Exit codes: 0 after SIGINT or SIGTERM, 1 when the engine died and was not to
be restarted; what cannot be started at all is a CoreError.
"""

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import uvicorn
from starlette.types import ASGIApp

from core.config import EngineConfig
from core.engine.client import EngineClient
from core.engine.front import Front
from core.errors import ConfigError
from server import defaults
from server.app import Served, create_app
from server.chat import Desk
from server.models import open_model
from server.show import log, log_plan, table

FAILURE_LINGER_S = 3.0
"""How long a server with a dead engine still answers 503, so that probes and clients see why it goes."""

DRAIN_S = 5
"""How long running requests may take to finish when the server is told to stop."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to serve.

    names                the model's, for clients
    generation_config    see `server.defaults.resolve`, with its override
    """

    host: str
    port: int
    names: tuple[str, ...]
    on_failure: Literal["exit", "restart"]
    generation_config: defaults.Mode
    override: str


def run(config: EngineConfig, options: Options) -> int:
    """Serve until told to stop. Returns the exit code. Raises: CoreError when nothing could be started."""
    return asyncio.run(_until_signalled(_serve(config, _bind(options.host, options.port), options)))


def _bind(host: str, port: int) -> socket.socket:
    """A bound socket; it refuses connections until the server is ready."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}; see --host and --port") from None
    return listener


async def _serve(config: EngineConfig, listener: socket.socket, options: Options) -> int:
    source = open_model(config.model)
    sampling, decided = defaults.resolve(source, options.generation_config, options.override)
    client = await EngineClient.start(config, on_failure=options.on_failure)
    try:
        log_plan(client.info.plan, client.info.kernels, client.info.notes)
        if decided:
            log.print(table("Sampling, where a request says nothing", ("what", "value", "decided by"), decided))
        max_model_len = client.info.max_model_len
        served = Served(options.names, config.model, max_model_len, sampling)
        desk = Desk(source, Front(client.info, source.eos_ids, source.tokenizer().encode), max_model_len)
        return await _answer(create_app(client, desk, served), listener, client, options.names[0])
    finally:
        await client.stop()


async def _answer(app: ASGIApp, listener: socket.socket, client: EngineClient, name: str) -> int:
    server = _Server(app, name)
    watch = asyncio.create_task(_stop_when_failed(server, client))
    with _signals(server.stop):
        await server.serve([listener])
    watch.cancel()
    if client.failed.is_set():
        print(f"error: {client.healthy()}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


async def _stop_when_failed(server: "_Server", client: EngineClient) -> None:
    await client.failed.wait()
    await asyncio.sleep(FAILURE_LINGER_S)
    server.stop()


class _Server(uvicorn.Server):
    """uvicorn, except that signals are ours: its handlers end the process before the engine can be stopped."""

    def __init__(self, app: ASGIApp, name: str) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                ws="none",
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=DRAIN_S,
            )
        )
        self._name = name

    def stop(self) -> None:
        self.should_exit = True

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        assert sockets
        host, port = sockets[0].getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        print(f"{self._name} is served at http://{host}:{port}/v1", file=sys.stderr)  # noqa: T201


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
