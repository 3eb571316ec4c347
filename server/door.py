"""What every request passes before it reaches a route: its id and its line in the log, keys, and the drain.

ASGI layers, outermost first: `Journal`, CORS, `Keys`, `Draining`. Default deny: once there are keys, a path that is
not named in `OPEN` needs one, also a path that does not exist.
"""

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core.clock import Clock, SystemClock
from core.request import new_request_id
from server.errors import error_response

OPEN = ("/health", "/live", "/")
"""Paths without a key: probes carry none, and a browser cannot send one with the page, which says nothing by itself."""


@dataclass
class Entry:
    """What is known of one HTTP request, for the log and the metrics. `output_tokens` has an item for each choice."""

    request_id: str
    method: str
    path: str
    status: int = 0
    duration_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: list[int] = field(default_factory=list)
    finish_reasons: list[str] = field(default_factory=list)


current: ContextVar[Entry | None] = ContextVar("current", default=None)
"""The request that is being answered."""


class Journal:
    """Gives every response an X-Request-Id, the client's own or a new one, and hands its entry over when it is done."""

    def __init__(self, app: ASGIApp, done: Callable[[Entry], None], clock: Clock | None = None) -> None:
        self._app = app
        self._done = done
        self._clock = clock or SystemClock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        entry = Entry(Headers(scope=scope).get("x-request-id") or new_request_id("req"), scope["method"], scope["path"])

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                entry.status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = entry.request_id
            await send(message)

        began_s, token = self._clock.now_s(), current.set(entry)
        try:
            await self._app(scope, receive, send_with_id)
        finally:
            current.reset(token)
            entry.duration_s = self._clock.now_s() - began_s
            self._done(entry)


class Keys:
    """Turns away who has no key: `Authorization: Bearer KEY`, or `X-Api-Key: KEY` as Anthropic's clients send it."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN or self._knows(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        message = "this server wants an API key: send it as `Authorization: Bearer KEY`"
        headers = {"WWW-Authenticate": "Bearer"}
        refused = error_response(scope["path"], 401, message, code="invalid_api_key", headers=headers)
        await refused(scope, receive, send)

    def _knows(self, headers: Headers) -> bool:
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        given = bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        digest = _digest(given.encode("latin-1"))
        # Digests are of one length, and all of them are compared: the time tells nothing.
        return bool(sum(hmac.compare_digest(digest, key) for key in self._keys))


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class Drain:
    """Whether the server is about to end. `reason` is None until it is; what runs then may finish."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._num_active = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self, reason: str) -> None:
        """From now on nothing new is taken."""
        self.reason = reason

    def enter(self) -> None:
        self._num_active += 1
        self._idle.clear()

    def leave(self) -> None:
        self._num_active -= 1
        if not self._num_active:
            self._idle.set()

    def include(self, task: asyncio.Task[None]) -> None:
        """What no HTTP request waits for runs, too, until it is done."""
        self.enter()
        task.add_done_callback(lambda _: self.leave())

    async def idle(self, timeout_s: float) -> bool:
        """Wait until nothing is being answered any more. False: it took too long."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True


class Draining:
    """Counts requests that ask for work (those with a body), and refuses new ones during a drain."""

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self._app = app
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        drain = self._drain
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
        elif drain.reason:
            message = f"{drain.reason}; send the request to another"
            await error_response(scope["path"], 503, message, code="draining")(scope, receive, send)
        else:
            drain.enter()
            try:
                await self._app(scope, receive, send)
            finally:
                drain.leave()
