"""A conversation with an engine process, for a program that is not asynchronous.

The engine's client lives in an event loop of its own thread, so that it hears the engine while the program waits
for a person.
"""

import asyncio
import queue
import threading
from collections.abc import Coroutine, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from core.engine.client import EngineClient

from core.config import EngineConfig
from core.engine.front import Front
from server.chat import Desk
from server.generation import Generation
from server.models import open_model
from server.schema import ChatBody, Message

T = TypeVar("T")


class Conversation:
    """Use as a context manager: the engine runs inside the block. Raises: CoreError when it cannot be started."""

    def __init__(self, config: EngineConfig, system: str | None, max_tokens: int | None, temperature: float) -> None:
        self._config = config
        self._max_tokens = max_tokens
        self._temperature = temperature
        self._history = [] if system is None else [Message(role="system", content=system)]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        source = open_model(self._config.model)
        self._client = self._wait_for(EngineClient.start(self._config, on_failure="exit"))
        self._desk = Desk(source, Front(self._client.info, source.eos_ids))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wait_for(self._client.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)

    def say(self, line: str) -> Iterator[str]:
        """The answer, in pieces. Ctrl-C ends it early; what was said so far is remembered.

        Raises: RequestError when the conversation has become too long; then `line` is forgotten.
        """
        body = ChatBody(
            model=self._config.model,
            messages=[*self._history, Message(role="user", content=line)],
            max_tokens=self._max_tokens,
            temperature=self._temperature,
        )
        pieces: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        answer = asyncio.run_coroutine_threadsafe(self._answer(body, pieces), self._loop)
        answer.add_done_callback(lambda _: pieces.put(None))
        said = []
        try:
            while (piece := pieces.get()) is not None:
                said.append(piece)
                yield piece
            answer.result()
        except KeyboardInterrupt:
            answer.cancel()
        self._history = [*body.messages, Message(role="assistant", content="".join(said))]

    async def _answer(self, body: ChatBody, pieces: queue.SimpleQueue[str | None]) -> None:
        sampling = body.sampling(body.max_new_tokens)
        generation = Generation(self._client, self._desk.tokenizer, await self._desk.chat(body, sampling), sampling)
        async for _, delta in generation.deltas():
            pieces.put(delta.text)

    def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
