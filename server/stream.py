"""How an answer is sent: as one JSON body, or as server-sent events.

A stream is `data: {chunk}` for each piece of text, then with include_usage one chunk without choices, then
`data: [DONE]`. The first chunk of a chat names the role, and leaves with the first token: clients take its
arrival as the time to first token. An error after that is `data: {"error": ...}` followed by [DONE]; one
before it is an exception, so that the caller can still answer with a real HTTP status.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

from msgspec import UNSET
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from core.errors import CoreError
from server.chat import Asked, off_loop_if
from server.errors import core_error_body
from server.generation import ClientGoneError, Generation, unless_gone
from server.responses import Reply, Usage, encode, usage
from server.schema import Body, StreamOptions
from server.shapes import ChatShape, Part, TextShape

DONE = b"data: [DONE]\n\n"

TOKEN_CHARS = 10
"""Characters of input that take as long as the log-probabilities of one token of a prompt."""


def event(body: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + body + b"\n\n"


class Answer:
    """One answer in the making: its choices, its shape, and the generation it comes from."""

    def __init__(
        self,
        created: int,
        body: Body,
        choices: Sequence[Asked],
        shape: ChatShape | TextShape,
        generation: Generation,
    ) -> None:
        self._head = (self._id(body, choices), created, body.model)
        self._interval = body.stream_interval or 1
        self._writers = [shape.writer(asked) for asked in choices]
        self._shape = shape
        self._generation = generation

    @staticmethod
    def _id(body: Body, choices: Sequence[Asked]) -> str:
        """With the client's own id in it, where it gave one."""
        own = choices[0].request.request_id.removesuffix("-0")
        return f"{own.partition('-')[0]}-{body.request_id}" if body.request_id else own

    async def whole(self) -> bytes:
        """The body of a response that is not streamed. Raises: what `Generation.reads` raises."""
        parts: dict[int, Part] = {}
        async with aclosing(self._parts()) as coming:
            async for index, part in coming:
                if index in parts:
                    parts[index].extend(part)
                else:
                    parts[index] = part
        choices = [self._shape.full(i, parts[i]) for i in sorted(parts)]
        return self._encode(self._shape.whole, choices, self._usage(), **self._shape.beside_choices(0, parts[0]))

    async def events(self, options: StreamOptions) -> AsyncGenerator[bytes]:
        """The events of a streamed response. Raises: what `Generation.reads` raises, before the first event only."""
        sent: set[int] = set()
        try:
            async with aclosing(self._paced()) as coming:
                async for index, part in coming:
                    data = self._events_of(index, part, options, first=index not in sent)
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

    async def _parts(self) -> AsyncGenerator[tuple[int, Part]]:
        async with aclosing(self._generation.reads()) as reads:
            async for index, read in reads:
                make = partial(self._writers[index].part, read)
                yield index, await off_loop_if(len(read.prompt_logprobs) * TOKEN_CHARS, make)

    async def _paced(self) -> AsyncGenerator[tuple[int, Part]]:
        """Parts of `stream_interval` tokens. The first one of a choice, and its end, do not wait."""
        held: dict[int, Part] = {}
        begun: set[int] = set()
        async with aclosing(self._parts()) as parts:
            async for index, part in parts:
                if index in held:
                    held[index].extend(part)
                else:
                    held[index] = part
                if index not in begun or part.finish_reason or held[index].num_tokens >= self._interval:
                    begun.add(index)
                    yield index, held.pop(index)

    def _events_of(self, index: int, part: Part, options: StreamOptions, first: bool) -> bytes:
        """Events for one step of one choice: none where a step gave nothing to show (yet)."""
        choices: list[Any] = [*self._shape.opening(index)] if first else []
        if part.shows or (first and not choices):
            choices.append(self._shape.piece(index, part))
        counts = self._usage() if options.continuous_usage_stats else None
        shown = counts if options.include_usage or counts else UNSET
        beside: list[dict[str, Any]] = [{}] * (len(choices) - 1)
        beside.append(self._shape.beside_choices(index, part))
        encoded = [self._encode(self._shape.chunk, [c], shown, **b) for c, b in zip(choices, beside, strict=False)]
        return b"".join(map(event, encoded))

    def _encode(self, kind: str, choices: list[Any], counts: Any, **beside: Any) -> bytes:
        answer_id, created, model = self._head
        return encode(Reply(answer_id, kind, created, model, choices, counts, **beside))

    def _usage(self) -> Usage:
        counts = self._generation.counts
        return usage(counts.prompt, counts.completion, counts.cached, counts.reasoning)


TURN = 4
"""Events that a stream sends in a row where many wait: then it is others' turn, and a client that hung up is noticed.
asyncio warns of each further write to a lost connection."""


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
        num_sent = 0
        async for data in self._rest:
            await send({"type": "http.response.body", "body": data, "more_body": True})
            num_sent += 1
            if num_sent % TURN == 0:
                await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def start_stream(receive: Receive, events: AsyncGenerator[bytes]) -> EventStream:
    """The response, once its first event is there. Raises: ClientGoneError, and what `events` raises first."""
    return EventStream(await unless_gone(receive, _next(events)), events)


async def _next(events: AsyncIterator[bytes]) -> bytes:
    return await anext(events)
