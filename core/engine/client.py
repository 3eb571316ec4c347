"""The engine process as the API process sees it. Never imports torch.

Owns the process: it starts it, notices within a moment when it dies, fails what was in flight, and starts it again or
says that it is over, as configured.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncGenerator
from typing import Literal

import msgspec

from core.clock import SYSTEM, Clock
from core.config import EngineConfig
from core.engine.front import ReadyInfo
from core.engine.messages import (
    Abort,
    Add,
    Beat,
    Failed,
    FromEngine,
    Inspect,
    Inspected,
    Outputs,
    Ready,
    Start,
    Stop,
    ToEngine,
    understand,
)
from core.engine.pipes import Pipes
from core.engine.snapshot import Snapshot
from core.errors import CoreError, DeviceError
from core.request import Request, SequenceOutput

SILENCE_S = 1.5  # without a beat for so long, the engine is stuck
STEP_S = 120.0  # a step that runs for so long will not end
STOP_S = 5.0

OnFailure = Literal["exit", "restart"]


class EngineClient:
    """One engine process. Made by `start`."""

    def __init__(
        self, config: EngineConfig, on_failure: OnFailure, clock: Clock = SYSTEM, json_logs: bool = False
    ) -> None:
        self._config, self._on_failure, self._clock, self._json_logs = config, on_failure, clock, json_logs
        self._streams: dict[str, asyncio.Queue[SequenceOutput]] = {}
        self._inspections: dict[int, asyncio.Future[Snapshot]] = {}
        self._num_inspections = 0
        self._folder = tempfile.TemporaryDirectory(prefix="core-")
        self._pipes: Pipes | None = None
        self._decoder: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
        self._generation = 0
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._last_word_s = 0.0
        self._why_down: str | None = "the engine is loading the model"
        self._down = asyncio.Event()  # set with `_why_down`, once an engine was there
        self._info: ReadyInfo | None = None
        self.last_beat = Beat(0, 0, 0.0)
        self.failed = asyncio.Event()

    @classmethod
    async def start(cls, config: EngineConfig, on_failure: OnFailure = "exit", json_logs: bool = False) -> EngineClient:
        """Start an engine and wait until it is ready. Raises: CoreError of the kind that stopped it."""
        client = cls(config, on_failure, json_logs=json_logs)
        try:
            await client._launch()
        except BaseException:
            await client.stop()
            raise
        client._tasks.append(asyncio.create_task(client._watch()))
        return client

    @property
    def info(self) -> ReadyInfo:
        assert self._info is not None
        return self._info

    @property
    def pid(self) -> int | None:
        """Of the engine process."""
        return self._process.pid if self._process else None

    def healthy(self) -> str | None:
        """None while the engine works; else what is wrong."""
        if self._why_down:
            return self._why_down
        silence_s = self._clock.now_s() - self._last_word_s
        if silence_s > SILENCE_S:
            return f"the engine has said nothing for {silence_s:.1f} s"
        if self.last_beat.step_s > STEP_S:
            return f"a step has been running for {self.last_beat.step_s:.0f} s"
        return None

    async def add(self, request: Request) -> AsyncGenerator[SequenceOutput, None]:
        """Send a request; its outputs, until the one with a finish reason. Leaving the iteration aborts it.

        Raises: DeviceError when the engine is not running.
        """
        queue: asyncio.Queue[SequenceOutput] = asyncio.Queue()
        self._streams[request.request_id] = queue
        ended = False
        try:
            await self._send(Add(request))
            while not ended:
                output = await queue.get()
                ended = output.finish_reason is not None
                yield output
        finally:
            self._streams.pop(request.request_id, None)
            if not ended:
                with contextlib.suppress(DeviceError):
                    await self._send(Abort(request.request_id))

    async def embed(self, request: Request) -> SequenceOutput:
        """Send a request for an embedding (`Front.embed_request`); its one output. Being cancelled aborts it.

        Errors are outputs, as in `add`. Raises: DeviceError when the engine is not running.
        """
        async with contextlib.aclosing(self.add(request)) as outputs:
            return await anext(outputs)

    async def abort(self, request_id: str) -> None:
        """End a request; its iteration gets an output with finish reason "abort". Raises: DeviceError as `add`."""
        if request_id in self._streams and not self._why_down:
            await self._send(Abort(request_id))

    async def inspect(self, max_sequences: int = 20) -> Snapshot:
        """What the engine holds, at the end of the step that runs. Raises: DeviceError when it is not running."""
        self._num_inspections += 1
        number = self._num_inspections
        answer: asyncio.Future[Snapshot] = asyncio.get_running_loop().create_future()
        self._inspections[number] = answer
        try:
            await self._send(Inspect(number, max_sequences))
            return await answer
        finally:
            del self._inspections[number]

    def fail(self, reason: str) -> None:
        """Tell everyone who waits for the engine that it is down, and take nothing more."""
        self._why_down = reason
        self._down.set()
        for request_id, queue in self._streams.items():
            queue.put_nowait(SequenceOutput(request_id, [], "error", error=reason))
        for answer in self._inspections.values():
            if not answer.done():
                answer.set_exception(DeviceError(reason))

    async def stop(self) -> None:
        """End the engine process and free everything."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.fail(self._why_down or "the engine is being stopped")
        await self._end_process()
        if self._pipes:
            self._pipes.close()
        self._folder.cleanup()

    async def _end_process(self) -> None:
        """Tell the process to stop, if there is one, and see that it does."""
        if self._process is None or self._process.returncode is not None:
            return
        stop = msgspec.msgpack.encode(Stop())
        stopping = asyncio.ensure_future(self._requests.send(stop))  # nobody may be there to take it
        try:
            await asyncio.wait_for(self._process.wait(), STOP_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        stopping.cancel()

    def _check_running(self) -> None:
        if self._why_down:
            raise DeviceError(f"the engine is not running: {self._why_down}")

    async def _send(self, message: ToEngine) -> None:
        """Raises: DeviceError when the engine is not running, or ends before it takes the message."""
        self._check_running()
        sending = asyncio.ensure_future(self._requests.send(msgspec.msgpack.encode(message)))
        if not sending.done():  # the pipe is full, or nobody is at its other end any more
            down = asyncio.ensure_future(self._down.wait())
            try:
                await asyncio.wait((sending, down), return_when=asyncio.FIRST_COMPLETED)
            finally:
                down.cancel()
            if self._why_down:
                sending.cancel()
                self._check_running()
        await sending

    async def _launch(self) -> None:
        """Start the process on fresh pipes and wait for its first word."""
        self._generation += 1
        pipes = self._pipes = Pipes(f"ipc://{self._folder.name}/{self._generation}")
        self._requests, self._replies = pipes.requests, pipes.replies
        start = Start(self._config_of_launch(), *pipes.addresses, self._json_logs)
        self._process = await self._start_process()
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):  # it has ended already, which shows right below
            self._process.stdin.write(msgspec.json.encode(start) + b"\n")
            await self._process.stdin.drain()
        self._info = await self._first_word()
        self._last_word_s = self._clock.now_s()
        self._why_down = None
        self._down.clear()

    async def _start_process(self) -> asyncio.subprocess.Process:
        program = (sys.executable, "-m", "core.engine.process")
        return await asyncio.create_subprocess_exec(*program, stdin=asyncio.subprocess.PIPE)

    async def _first_word(self) -> ReadyInfo:
        assert self._process is not None
        ended = asyncio.ensure_future(self._process.wait())
        word = asyncio.ensure_future(self._replies.recv())
        await asyncio.wait({ended, word}, return_when=asyncio.FIRST_COMPLETED)
        if not word.done():
            # The reason may still be on its way.
            await asyncio.wait({word}, timeout=0.5)
        if not word.done():
            word.cancel()
            raise DeviceError(f"the engine process ended with code {ended.result()} while loading")
        ended.cancel()
        message = understand(self._decoder, word.result())
        if isinstance(message, Ready):
            return message.info
        assert isinstance(message, Failed), message
        await self._end_process()
        raise message.error()

    def _config_of_launch(self) -> EngineConfig:
        """An engine that is started again writes its trace beside that of the one that ended."""
        config = self._config
        if config.profile is None or self._generation == 1:
            return config
        return msgspec.structs.replace(config, profile=f"{config.profile}.{self._generation}")

    async def _watch(self) -> None:
        """Serve one process after another, until one fails for good."""
        while True:
            self.fail(await self._serve_until_end())
            if self._on_failure == "exit":
                self.failed.set()
                return
            await self._end_process()
            if self._pipes:
                self._pipes.close()
            try:
                await self._launch()
            except CoreError as error:
                self._why_down = f"the engine could not be started again: {error}"
                self.failed.set()
                return

    async def _serve_until_end(self) -> str:
        """Hand out replies until the process ends; returns why it did."""
        assert self._process is not None
        ended = asyncio.ensure_future(self._process.wait())
        listening = asyncio.ensure_future(self._listen())
        try:
            done, _ = await asyncio.wait({ended, listening}, return_when=asyncio.FIRST_COMPLETED)
            if listening in done:
                listening.result()
            return f"the engine process ended with code {ended.result()}"
        except CoreError as error:
            return str(error)
        finally:
            for future in (ended, listening):
                future.cancel()
            await asyncio.gather(ended, listening, return_exceptions=True)

    async def _listen(self) -> None:
        """Hand out replies. Raises: CoreError when the engine says that it cannot go on, or cannot be understood."""
        while True:
            message = understand(self._decoder, await self._replies.recv())
            self._last_word_s = self._clock.now_s()
            if isinstance(message, Outputs):
                for output in message.outputs:
                    if queue := self._streams.get(output.request_id):
                        queue.put_nowait(output)
            elif isinstance(message, Beat):
                self.last_beat = message
            elif isinstance(message, Inspected):
                if (answer := self._inspections.get(message.number)) and not answer.done():
                    answer.set_result(message.snapshot)
            elif isinstance(message, Failed):
                raise message.error()
