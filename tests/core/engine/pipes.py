"""An engine client whose engine runs on a thread of this process, with a fault at the Nth message.

Client, pipes, loop and engine are the real ones. A process that does nothing (`cat`) lives as long as the loop does and
stands for its process, because starting an engine process for each N would take seconds. A rank is stood in for too:
it takes plans and masks as they are sent, and what matters of it is when it is gone.

Messages are counted in both directions and to the rank. At the one that is armed: it is garbled, or the pipe breaks, or
the process is killed, as `MODES` says.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from typing import Any

import msgspec
import zmq

from core.config import EngineConfig
from core.engine.client import EngineClient, OnFailure
from core.engine.messages import Start
from core.engine.process import serve
from core.engine.step import StepPlan
from core.errors import DeviceError
from tests.core.engine.faults import Bench

MODES = ("garbled", "broken", "killed")
GARBAGE = b"\xc1"  # the one byte that begins nothing in msgpack


class Fault(Exception):
    """A message that is to fail, in this mode."""


class Rank:
    """Rank 1, as the executor sees it."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.is_gone = False

    def send(self, plan: StepPlan) -> None:
        raw = msgspec.msgpack.encode(plan)
        assert msgspec.msgpack.decode(raw, type=StepPlan) == plan
        self.send_masks(raw)

    def send_masks(self, words: bytes) -> None:
        self.check()
        try:
            self._bench.fuse.spend("message")
        except Fault as fault:
            self.is_gone = True  # it cannot go on either when it does not understand
            if fault.args != ("garbled",):
                raise DeviceError("a rank ended with code None: restart the engine") from fault

    def check(self) -> None:
        if self.is_gone:
            raise DeviceError("rank 1 ended with code -9: restart the engine")

    def kill(self) -> None:
        self.is_gone = True


class StandIn:
    """The process that does nothing."""

    def __init__(self, pid: int) -> None:
        self._pid: int | None = pid

    def kill(self) -> None:
        """Once: later the number may be that of another."""
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
            self._pid = None


class Pipe:
    """The engine's end of a pipe."""

    def __init__(self, socket: zmq.Socket[bytes], bench: Bench, process: StandIn) -> None:
        self._socket, self._bench, self._process = socket, bench, process

    def poll(self, timeout_ms: int) -> int:
        return self._socket.poll(timeout_ms)

    def recv(self) -> bytes:
        return self._pass(self._socket.recv())

    def send(self, raw: bytes) -> None:
        self._socket.send(self._pass(raw))

    def _pass(self, raw: bytes) -> bytes:
        try:
            self._bench.fuse.spend("message")
        except Fault as fault:
            if fault.args == ("garbled",):
                return GARBAGE
            if fault.args == ("killed",):
                self._process.kill()
            raise zmq.ZMQError(zmq.ENOTSOCK) from fault
        return raw


class Client(EngineClient):
    """Serves the requests of a bench. Made by `open_client`."""

    bench: Bench
    threads: list[threading.Thread]

    async def _start_process(self) -> asyncio.subprocess.Process:
        told, tells = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE, stdout=tells)
        finally:
            os.close(tells)
        for thread in self.threads:
            await asyncio.to_thread(thread.join)
        self.threads.append(threading.Thread(target=_live, args=(self.bench, told, StandIn(process.pid))))
        self.threads[-1].start()
        return process


async def open_client(bench: Bench, on_failure: OnFailure) -> Client:
    kind: Any = type("ClientOfBench", (Client,), {"bench": bench, "threads": []})
    client: Client = await kind.start(EngineConfig(model="of the bench"), on_failure)
    return client


def _live(bench: Bench, told: int, process: StandIn) -> None:
    """What `core.engine.process.main` does, with an engine that is there."""
    with open(told, "rb") as stdin:
        start = msgspec.json.decode(stdin.readline(), type=Start)
    bench.engine.executor._others = Rank(bench)  # type: ignore[assignment]
    context = zmq.Context.instance()
    with context.socket(zmq.PULL) as requests, context.socket(zmq.PUSH) as replies:
        requests.connect(start.requests)
        replies.connect(start.replies)
        requests.linger, replies.linger = 0, 1000
        with contextlib.suppress(zmq.ZMQError):  # else a traceback, and the end of the process
            serve(bench.engine, Pipe(requests, bench, process), Pipe(replies, bench, process))  # type: ignore[arg-type]
    process.kill()
    bench.recover()
