"""The engine as routes see it: counts what goes through, and turns away what would have to wait too long.

How many requests wait is what the engine says of its last step, or, where more have come since, those beyond the
number of sequences that can run at once. Without limits nothing is turned away.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from core.clock import Clock, SystemClock
from core.engine.front import ReadyInfo
from core.engine.messages import Beat
from core.engine.snapshot import Snapshot
from core.errors import CapacityError, DeviceError
from core.request import Request, SequenceOutput
from server.door import current
from server.metrics import Live, Record

LONGEST_RETRY_S = 60.0


class Client(Protocol):
    """What of `core.engine.client.EngineClient` is needed here."""

    last_beat: Beat

    @property
    def info(self) -> ReadyInfo:
        """Of the engine that runs."""

    def add(self, request: Request) -> AsyncGenerator[SequenceOutput, None]:
        """Outputs of a request; closing the generator aborts it."""

    def healthy(self) -> str | None:
        """None, or what is wrong."""

    async def inspect(self, max_sequences: int = 20) -> Snapshot:
        """What the engine holds. Raises: DeviceError when it is not running."""


@dataclass(frozen=True)
class Limits:
    """What may wait, in requests (a choice counts as one) and in tokens of their prompts. None: any number."""

    queued_reqs: int | None = None
    queued_tokens: int | None = None


class Gate:
    """Stands before an engine client and does what that does."""

    def __init__(self, client: Client, limits: Limits, record: Record, clock: Clock | None = None) -> None:
        self._client = client
        self._limits = limits
        self._record = record
        self._clock = clock or SystemClock()
        self._live: dict[str, Live] = {}

    def healthy(self) -> str | None:
        return self._client.healthy()

    async def inspect(self, max_sequences: int = 20) -> Snapshot:
        return await self._client.inspect(max_sequences)

    async def add(self, request: Request) -> AsyncGenerator[SequenceOutput, None]:
        """As the client's. Raises: CapacityError when too much waits already."""
        self._check_room(request)
        live = self._live[request.request_id] = Live(request.arrival_s, len(request.prompt_ids))
        note, now_s = self._record.note, self._clock.now_s
        try:
            async with aclosing(self._client.add(request)) as outputs:
                async for output in outputs:
                    note(live, output, now_s())
                    yield output
        except DeviceError:
            live.reason = "error"
            raise
        finally:
            del self._live[request.request_id]
            self._record.ended(live, current.get())

    async def embed(self, request: Request) -> SequenceOutput:
        """The one output of a request for an embedding. Raises: as `add`."""
        async with aclosing(self.add(request)) as outputs:
            return await anext(outputs)

    def stopped(self, request_id: str) -> None:
        """A stop string was found: that the request is closed now is its regular end."""
        self._live[request_id].reason = "stop"

    def _check_room(self, request: Request) -> None:
        limits = self._limits
        if limits.queued_reqs is None and limits.queued_tokens is None:
            return
        unstarted = [live for live in self._live.values() if not live.first_s]
        # What the engine said last may be of requests that have gone since.
        told = min(self._client.last_beat.num_waiting, len(unstarted))
        num_seqs = self._client.info.max_num_seqs
        waiting = max(len(self._live) + 1 - num_seqs, told + 1 if told else 0)
        if waiting <= 0:
            return
        if limits.queued_reqs is not None and waiting > limits.queued_reqs:
            raise self._full(f"{waiting} requests", f"--max-num-queued-reqs {limits.queued_reqs}", waiting)
        if limits.queued_tokens is None:
            return
        # The last ones to come are those that wait.
        last = islice(reversed(unstarted), waiting - 1)
        tokens = len(request.prompt_ids) + sum(live.num_prompt for live in last)
        if tokens > limits.queued_tokens:
            raise self._full(f"{tokens} prompt tokens", f"--max-num-queued-tokens {limits.queued_tokens}", waiting)

    def _full(self, what: str, limit: str, waiting: int) -> CapacityError:
        """With when to try again: when as many as wait have ended, at the pace of those before."""
        pace_s = self._record.e2e_s.mean / self._client.info.max_num_seqs
        retry_s = min(LONGEST_RETRY_S, max(1.0, waiting * pace_s))
        return CapacityError(f"with this request {what} would wait, and the limit is {limit}: try again later", retry_s)
