"""POST /v1/responses, GET /v1/responses/{id} and POST /v1/responses/{id}/cancel."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from fastapi import FastAPI, HTTPException, Request, Response

from core.errors import CoreError, RequestError
from core.request import new_request_id
from server.chat import Desk
from server.door import Drain
from server.errors import json_response
from server.generation import Engine, Generation, unless_gone
from server.metrics import Record
from server.named_events import Event, encoded, to_the_end
from server.response_api.asked import ResponseBody, Turns, turns_of
from server.response_api.kept import Kept, Shelf
from server.response_api.writer import ResponseWriter
from server.responses import encode
from server.routes.body import read
from server.schema import in_terms_of
from server.served import Served
from server.stream import start_stream
from server.strict import parse


def add_responses(app: FastAPI, engine: Engine, desk: Desk, served: Served, record: Record, drain: Drain) -> None:
    """Add the routes. A drain waits for responses in the background, too."""
    shelf = Shelf()

    @app.post("/v1/responses")
    async def create(http: Request) -> Response:
        raw = await read(http)
        body = parse(raw, ResponseBody)
        served.check_model(body.model)
        earlier = _earlier(shelf, body)
        kept = Kept(ResponseWriter(body, new_request_id("resp")), [*earlier, *turns_of(body.input)], len(raw))
        with in_terms_of(body.names):
            coming = _events(kept.writer, await generation(body, earlier))
            if body.background:
                kept.task = asyncio.create_task(_unwatched(coming))
                drain.include(kept.task)
            elif body.stream:
                answer: Response = await start_stream(http.receive, _encoded(coming))
            else:
                await unless_gone(http.receive, to_the_end(coming))
        if body.store is not False:
            shelf.put(kept)
        return answer if body.stream else json_response(encode(kept.writer.response))

    async def generation(body: ResponseBody, earlier: Turns) -> Generation:
        chat = body.chat(earlier)
        sampling = chat.sampling(served.defaults)
        with chat.wording():
            choices = await desk.chat(chat, sampling)
        record.asked(sampling.n, sampling.max_tokens)
        return Generation(engine, desk.tokenizer, choices, sampling)

    @app.get("/v1/responses/{response_id}")
    async def get(response_id: str) -> Response:
        return json_response(encode(_find(shelf, response_id).writer.response))

    @app.post("/v1/responses/{response_id}/cancel")
    async def cancel(response_id: str) -> Response:
        kept = _find(shelf, response_id)
        if kept.task is None:
            raise RequestError(f"{response_id} is not a response in the background: only those can be cancelled")
        if kept.task.cancel():
            await asyncio.wait([kept.task])
            kept.writer.cancel()
        return json_response(encode(kept.writer.response))


def _find(shelf: Shelf, response_id: str) -> Kept:
    kept = shelf.get(response_id)
    if kept is None:
        raise HTTPException(404, f"no response {response_id} is kept here: the latest are, until the server ends")
    return kept


def _earlier(shelf: Shelf, body: ResponseBody) -> Turns:
    """The turns before the input: those of the response that it follows, and what that one answered."""
    if body.previous_response_id is None:
        return []
    kept = _find(shelf, body.previous_response_id)
    response = kept.writer.response
    if response["status"] not in ("completed", "incomplete"):
        raise RequestError(
            f"previous_response_id is {response['id']}, which is {response['status']}: name one that is complete",
            "previous_response_id",
        )
    return [*kept.turns, *(turns_of(response["output"]) if response["output"] else [])]


async def _events(writer: ResponseWriter, generation: Generation) -> AsyncGenerator[Event]:
    """Events of a response. Raises: what `Generation.reads` raises, before the first event only."""
    begun = False
    try:
        async with aclosing(generation.reads()) as reads:
            async for _, each in reads:
                for event in [*([] if begun else writer.begin()), *writer.take(each)]:
                    begun = True
                    yield event
        for event in writer.end(generation.counts):
            yield event
    except CoreError as error:
        events = writer.fail(str(error))
        if not begun:
            raise
        for event in events:
            yield event
    except (GeneratorExit, asyncio.CancelledError):
        writer.cancel()
        raise


async def _unwatched(events: AsyncGenerator[Event]) -> None:
    """Nobody waits: an error shows in the response."""
    with suppress(CoreError):
        await to_the_end(events)


async def _encoded(events: AsyncGenerator[Event]) -> AsyncGenerator[bytes]:
    async with aclosing(events):
        async for event in events:
            yield encoded(event)
