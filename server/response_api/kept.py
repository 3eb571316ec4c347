"""Responses that clients may come back to: in memory, the latest of them, until the server ends."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from server.response_api.asked import Turns
from server.response_api.writer import ResponseWriter

MAX_KEPT = 1000
MAX_KEPT_BYTES = 256 * 1024 * 1024


@dataclass
class Kept:
    """A response, and the turns that it answered.

    num_bytes   of its request
    task        what generates it in the background
    """

    writer: ResponseWriter
    turns: Turns
    num_bytes: int
    task: asyncio.Task[None] | None = None


class Shelf:
    """At most so many responses, of requests of at most so many bytes together: the oldest make room."""

    def __init__(self, max_kept: int = MAX_KEPT, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._max_kept = max_kept
        self._max_bytes = max_bytes
        self._num_bytes = 0

    def put(self, kept: Kept) -> None:
        self._kept[kept.writer.response["id"]] = kept
        self._num_bytes += kept.num_bytes
        while len(self._kept) > self._max_kept or (self._num_bytes > self._max_bytes and len(self._kept) > 1):
            _, oldest = self._kept.popitem(last=False)
            self._num_bytes -= oldest.num_bytes
            if oldest.task is not None:
                oldest.task.cancel()

    def get(self, response_id: str) -> Kept | None:
        return self._kept.get(response_id)
