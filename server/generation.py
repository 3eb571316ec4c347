"""Running a client's requests in the engine, and stopping them when nobody waits for them any more.

One client request is one engine request for each choice. Owns: their merged output in order of arrival, the
token counts, and aborting whatever has not finished when the reader stops reading.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from starlette.types import Receive

from core.engine.output import Delta, TextOutput
from core.engine.snapshot import Snapshot
from core.errors import DeviceError
from core.request import Request, SamplingParams, SequenceOutput
from server.errors import EngineDownError

T = TypeVar("T")


class Engine(Protocol):
    """What the server needs of `core.engine.client.EngineClient`."""

    def add(self, request: Request) -> AsyncGenerator[SequenceOutput, None]:
        """Outputs of a request; closing the generator aborts it."""

    def healthy(self) -> str | None:
        """None, or what is wrong."""

    async def inspect(self, max_sequences: int = 20) -> Snapshot:
        """What the engine holds. Raises: DeviceError when it is not running."""


class ClientGoneError(Exception):
    """The client hung up: there is nobody to answer."""


@dataclass
class Counts:
    """Tokens of one client request, over all its choices; a prompt counts once, whatever n is."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0


class Generation:
    """All choices of one client request. Iterate `deltas` once; close it to abort.

    tokenizer     turns ids into text, see `core.engine.output`
    prompt_only   nothing is to be generated: the token that the engine has to draw is dropped, and not counted
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Any,
        requests: Sequence[Request],
        sampling: SamplingParams,
        prompt_only: bool = False,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._requests = requests
        self._sampling = sampling
        self._prompt_only = prompt_only
        self.counts = Counts(prompt=sum(len(request.prompt_ids) for request in requests[:: sampling.n]))

    async def deltas(self) -> AsyncGenerator[tuple[int, Delta]]:
        """(index of the choice, what one step added to it), until every choice has finished.

        Raises: CapacityError, DeviceError, EngineDownError; then the other choices are aborted too.
        """
        if len(self._requests) == 1:
            async with aclosing(self._choice(0, self._requests[0])) as choice:
                async for delta in choice:
                    yield 0, delta
            return
        async with aclosing(self._merged()) as merged:
            async for item in merged:
                yield item

    async def _merged(self) -> AsyncGenerator[tuple[int, Delta]]:
        ready: asyncio.Queue[tuple[int, Delta | asyncio.Task[None]]] = asyncio.Queue()

        async def pump(index: int, request: Request) -> None:
            async with aclosing(self._choice(index, request)) as choice:
                async for delta in choice:
                    ready.put_nowait((index, delta))

        tasks = [asyncio.create_task(pump(i, request)) for i, request in enumerate(self._requests)]
        for task in tasks:
            task.add_done_callback(lambda ended: ready.put_nowait((0, ended)))
        try:
            running = len(tasks)
            while running:
                index, item = await ready.get()
                if isinstance(item, asyncio.Task):
                    item.result()
                    running -= 1
                else:
                    yield index, item
        finally:
            await _cancel(tasks)

    async def _choice(self, index: int, request: Request) -> AsyncGenerator[Delta]:
        text = TextOutput(self._tokenizer, self._sampling, request.prompt_ids)
        outputs = self._engine.add(request)
        cached = 0
        try:
            async with aclosing(outputs):
                async for output in outputs:
                    if output.finish_reason == "error":
                        raise DeviceError(output.error or "the engine could not finish this request")
                    if index % self._sampling.n == 0:
                        self.counts.cached += max(0, output.num_cached - cached)
                        cached = max(cached, output.num_cached)
                    delta = text.push(output)
                    if self._prompt_only:
                        delta = Delta("", [], "length", None, [], delta.prompt_logprobs)
                    self.counts.completion += len(delta.token_ids)
                    yield delta
                    if delta.finish_reason is not None:
                        return
        except DeviceError as error:
            if self._engine.healthy() is None:
                raise
            raise EngineDownError(str(error)) from None


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client hangs up first. Raises: ClientGoneError."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_hung_up(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        await _cancel([task, gone])


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
