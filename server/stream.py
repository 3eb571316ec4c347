"""How an answer is sent: as one JSON body, or as server-sent events.

A stream is `data: {chunk}` for each piece of text, then with include_usage one chunk without choices, then
`data: [DONE]`. The first chunk of a chat names the role, and leaves with the first token: clients take its
arrival as the time to first token. An error after that is `data: {"error": ...}` followed by [DONE]; one
before it is an exception, so that the caller can still answer with a real HTTP status.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

from msgspec import UNSET
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from core.engine.output import Delta
from core.errors import CoreError
from server.errors import core_error_body
from server.generation import ClientGoneError, Generation, unless_gone
from server.responses import ChatChoice, ChatMessage, Reply, TextChoice, Usage, encode, usage
from server.schema import StreamOptions

DONE = b"data: [DONE]\n\n"


def event(body: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + body + b"\n\n"


class ChatFormat:
    """The shape of /v1/chat/completions."""

    whole = "chat.completion"
    chunk = "chat.completion.chunk"

    @staticmethod
    def opening(index: int) -> list[ChatChoice]:
        return [ChatChoice(index, delta=ChatMessage("assistant", ""))]

    @staticmethod
    def piece(index: int, delta: Delta) -> ChatChoice:
        message = ChatMessage(content=delta.text or UNSET)
        return ChatChoice(index, delta=message, finish_reason=delta.finish_reason, stop_reason=delta.stop_reason)

    @staticmethod
    def full(index: int, text: str, last: Delta) -> ChatChoice:
        message = ChatMessage("assistant", text)
        return ChatChoice(index, message=message, finish_reason=last.finish_reason, stop_reason=last.stop_reason)


class TextFormat:
    """The shape of /v1/completions."""

    whole = "text_completion"
    chunk = "text_completion"

    @staticmethod
    def opening(index: int) -> list[TextChoice]:
        return []

    @staticmethod
    def piece(index: int, delta: Delta) -> TextChoice:
        return TextChoice(index, delta.text, finish_reason=delta.finish_reason, stop_reason=delta.stop_reason)

    @staticmethod
    def full(index: int, text: str, last: Delta) -> TextChoice:
        return TextChoice(index, text, finish_reason=last.finish_reason, stop_reason=last.stop_reason)


class Answer:
    """One answer in the making: what it is called, its shape, and the generation it comes from."""

    def __init__(
        self,
        answer_id: str,
        created: int,
        model: str,
        shape: type[ChatFormat] | type[TextFormat],
        generation: Generation,
    ) -> None:
        self._head = (answer_id, created, model)
        self._shape = shape
        self._generation = generation

    async def whole(self) -> bytes:
        """The body of a response that is not streamed. Raises: what `Generation.deltas` raises."""
        texts: dict[int, list[str]] = {}
        last: dict[int, Delta] = {}
        async with aclosing(self._generation.deltas()) as deltas:
            async for index, delta in deltas:
                texts.setdefault(index, []).append(delta.text)
                last[index] = delta
        choices = [self._shape.full(i, "".join(texts[i]), last[i]) for i in sorted(texts)]
        return self._encode(self._shape.whole, choices, self._usage())

    async def events(self, options: StreamOptions) -> AsyncGenerator[bytes]:
        """The events of a streamed response. Raises: what `Generation.deltas` raises, before the first event only."""
        sent: set[int] = set()
        try:
            async with aclosing(self._generation.deltas()) as deltas:
                async for index, delta in deltas:
                    data = self._events_of(index, delta, options, first=index not in sent)
                    sent.add(index)
                    if data:
                        yield data
        except CoreError as error:
            if not sent:
                raise
            yield event(core_error_body(error)) + DONE
            return
        if options.include_usage:
            yield event(self._encode(self._shape.chunk, [], self._usage()))
        yield DONE

    def _events_of(self, index: int, delta: Delta, options: StreamOptions, first: bool) -> bytes:
        """Events for one step of one choice: none where a step gave no text (yet)."""
        choices: list[Any] = [*self._shape.opening(index)] if first else []
        if delta.text or delta.finish_reason or (first and not choices):
            choices.append(self._shape.piece(index, delta))
        counts = self._usage() if options.continuous_usage_stats else None
        shown = counts if options.include_usage or counts else UNSET
        return b"".join(event(self._encode(self._shape.chunk, [choice], shown)) for choice in choices)

    def _encode(self, kind: str, choices: list[Any], counts: Any) -> bytes:
        answer_id, created, model = self._head
        return encode(Reply(answer_id, kind, created, model, choices, counts))

    def _usage(self) -> Usage:
        counts = self._generation.counts
        return usage(counts.prompt, counts.completion, counts.cached)


class EventStream(Response):
    """Sends events as they come; stops them when the client hangs up."""

    media_type = "text/event-stream"

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._rest):
            with suppress(ClientGoneError):
                await unless_gone(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        async for data in self._rest:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def start_stream(receive: Receive, events: AsyncGenerator[bytes]) -> EventStream:
    """The response, once its first event is there. Raises: ClientGoneError, and what `events` raises first."""
    return EventStream(await unless_gone(receive, _next(events)), events)


async def _next(events: AsyncIterator[bytes]) -> bytes:
    return await anext(events)
