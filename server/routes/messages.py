"""POST /v1/messages and /v1/messages/count_tokens."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import FastAPI, Request, Response

from core.errors import CoreError
from server.chat import Desk, off_loop_if
from server.errors import json_response, message_error, status_of
from server.generation import Engine, Generation, unless_gone
from server.message_api.asked import MessageBody, PromptBody
from server.message_api.writer import MessageWriter
from server.metrics import Record
from server.named_events import Event, encoded, to_the_end
from server.responses import encode
from server.routes.body import read
from server.schema import in_terms_of
from server.served import Served
from server.stream import start_stream
from server.strict import parse


def add_messages(app: FastAPI, engine: Engine, desk: Desk, served: Served, record: Record) -> None:
    """Add the routes."""

    @app.post("/v1/messages")
    async def create(http: Request) -> Response:
        body = parse(await read(http), MessageBody)
        served.check_model(body.model)
        with in_terms_of(body.names):
            chat = body.chat(desk.reasons)
            sampling = chat.sampling(served.defaults)
            choices = await desk.chat(chat, sampling)
            record.asked(sampling.n, sampling.max_tokens)
            generation = Generation(engine, desk.tokenizer, choices, sampling)
            writer = MessageWriter(body.model, generation.counts)
            events = _events(writer, generation)
            if body.stream:
                return await start_stream(http.receive, _encoded(events))
            await unless_gone(http.receive, to_the_end(events))
        return json_response(encode(writer.message))

    @app.post("/v1/messages/count_tokens")
    async def count(http: Request) -> Response:
        raw = await read(http)
        body = parse(raw, PromptBody)
        served.check_model(body.model)
        with in_terms_of(body.names):
            chat = body.chat(desk.reasons)
            ids = await off_loop_if(len(raw), lambda: desk.chat_ids(chat))
        return json_response(encode({"input_tokens": len(ids)}))


async def _events(writer: MessageWriter, generation: Generation) -> AsyncGenerator[Event]:
    """Events of a message. Raises: what `Generation.reads` raises."""
    begun = False
    async with aclosing(generation.reads()) as reads:
        async for _, each in reads:
            for event in [*([] if begun else writer.begin()), *writer.take(each)]:
                begun = True
                yield event
    for event in writer.end():
        yield event


async def _encoded(events: AsyncGenerator[Event]) -> AsyncGenerator[bytes]:
    """Raises: what `events` raises, before the first one only: later it is an event."""
    begun = False
    try:
        async with aclosing(events):
            async for event in events:
                yield encoded(event)
                begun = True
    except CoreError as error:
        if not begun:
            raise
        yield encoded(message_error(status_of(error), str(error)))
