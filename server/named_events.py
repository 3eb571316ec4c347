"""Server-sent events that have names, as the Responses and Messages APIs send them: JSON objects with their `type`."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from server.responses import encode

Event = dict[str, Any]


def encoded(event: Event) -> bytes:
    """The event as it is sent."""
    return b"event: " + str(event["type"]).encode() + b"\ndata: " + encode(event) + b"\n\n"


async def to_the_end(events: AsyncGenerator[Event]) -> None:
    """Let everything happen that the events tell of. Raises: what `events` raises."""
    async with aclosing(events):
        async for _ in events:
            pass
