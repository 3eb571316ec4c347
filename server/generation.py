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

from core.engine.snapshot import Snapshot
from core.errors import CoreError, DeviceError, RequestError
from core.request import Request, SamplingParams, SequenceOutput
from server.chat import Asked
from server.errors import EngineDownError
from server.reader import Read

T = TypeVar("T")


class Engine(Protocol):
    """What routes need: `server.gate.Gate`."""

    def add(self, request: Request) -> AsyncGenerator[SequenceOutput, None]:
        """Outputs of a request; closing the generator aborts it."""

    async def embed(self, request: Request) -> SequenceOutput:
        """The one output of a request for an embedding."""

    def stopped(self, request_id: str) -> None:
        """A stop string was found: that the request is closed now is its regular end."""

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
    reasoning: int = 0


class Generation:
    """All choices of one client request. Iterate `reads` once; close it to abort.

    tokenizer     turns ids into text
    prompt_only   nothing is to be generated: the token that the engine has to draw is dropped, and not counted
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Any,
        choices: Sequence[Asked],
        sampling: SamplingParams,
        prompt_only: bool = False,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._choices = choices
        self._sampling = sampling
        self._prompt_only = prompt_only
        self.counts = Counts(prompt=sum(len(asked.request.prompt_ids) for asked in choices[:: sampling.n]))

    async def reads(self) -> AsyncGenerator[tuple[int, Read]]:
        """(index of the choice, what one step added to it), until every choice has finished.

        Raises: CapacityError, DeviceError, EngineDownError; then the other choices are aborted too.
        """
        if len(self._choices) == 1:
            async with aclosing(self._choice(0, self._choices[0])) as choice:
                async for read in choice:
                    yield 0, read
            return
        async with aclosing(self._merged()) as merged:
            async for item in merged:
                yield item

    async def _merged(self) -> AsyncGenerator[tuple[int, Read]]:
        ready: asyncio.Queue[tuple[int, Read | asyncio.Task[None]]] = asyncio.Queue()

        async def pump(index: int, asked: Asked) -> None:
            async with aclosing(self._choice(index, asked)) as choice:
                async for read in choice:
                    ready.put_nowait((index, read))

        tasks = [asyncio.create_task(pump(i, asked)) for i, asked in enumerate(self._choices)]
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

    async def _choice(self, index: int, asked: Asked) -> AsyncGenerator[Read]:
        request = asked.request
        reader = asked.parsers.open(self._tokenizer, self._sampling, request.prompt_ids)
        outputs = self._engine.add(request)
        cached = 0
        try:
            async with aclosing(outputs):
                async for output in outputs:
                    if output.finish_reason == "error":
                        raise _error(output)
                    if index % self._sampling.n == 0:
                        self.counts.cached += max(0, output.num_cached - cached)
                        cached = max(cached, output.num_cached)
                    read = reader.push(output)
                    if self._prompt_only:
                        read = Read("", [], "length", None, [], read.prompt_logprobs)
                    self.counts.completion += len(read.token_ids)
                    self.counts.reasoning += read.num_reasoning
                    if read.finish_reason == "stop" and output.finish_reason is None:
                        self._engine.stopped(request.request_id)
                    yield read
                    if read.finish_reason is not None:
                        return
        except DeviceError as error:
            if self._engine.healthy() is None:
                raise
            raise EngineDownError(str(error)) from None


def _error(output: SequenceOutput) -> CoreError:
    reason = output.error or "the engine could not finish this request"
    if not output.refused:
        return DeviceError(reason)
    param = next((kind for kind in ("structured calls", "structured") if reason.startswith(f"{kind} ")), None)
    return RequestError(reason, param)


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
