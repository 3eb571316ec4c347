"""The engine process (`python -m core.engine.process`): the engine's loop between two pipes.

It is told what to be on its standard input, and ends when that closes: an engine never outlives its server. While it
waits for the device it says how long it has been waiting, so that a stall shows from outside.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading

import msgspec
import zmq

from core.clock import SystemClock
from core.engine.engine import Engine
from core.engine.json_logs import log_as_json
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
from core.engine.progress import starting_bars
from core.errors import CoreError, RequestError
from core.kv.accounts import AccountsError
from core.request import SequenceOutput

BEAT_S = 0.25


class Loop:
    """Takes in requests, turns the engine, sends what comes out."""

    def __init__(self, engine: Engine, requests: zmq.Socket[bytes], replies: zmq.Socket[bytes]) -> None:
        self._engine = engine
        self._requests = requests
        self._replies = replies
        self._clock = SystemClock()
        self._decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
        self._last_beat_s = -BEAT_S
        self._step_began_s: float | None = None
        self._num_waiting = 0
        self._send = engine.profile.timed("encode", send) if engine.profile else send

    def run(self) -> None:
        """Until told to stop. Raises: CoreError, AccountsError when the engine cannot go on."""
        engine = self._engine
        send(self._replies, Ready(engine.info()))
        while self._take_in():
            self._beat()
            if engine.busy:
                self._step_began_s = self._clock.now_s()
                outputs = engine.step(self._beat)
                self._step_began_s = None
                if outputs:
                    self._send(self._replies, Outputs(outputs))
            self._num_waiting = engine.scheduler.num_waiting
            engine.check()

    def _take_in(self) -> bool:
        """Handle every message that is here; wait for one while there is nothing to do. False: stop."""
        wait_ms = 0 if self._engine.busy else int(BEAT_S * 1000)
        while self._requests.poll(wait_ms):
            wait_ms = 0
            message = understand(self._decoder, self._requests.recv())
            if isinstance(message, Stop):
                return False
            if isinstance(message, Inspect):
                send(self._replies, Inspected(message.number, self._engine.inspect(message.max_sequences)))
                continue
            output = self._handle(message)
            if output:
                send(self._replies, Outputs([output]))
        return True

    def _handle(self, message: Add | Abort) -> SequenceOutput | None:
        if isinstance(message, Abort):
            return self._engine.abort(message.request_id)
        try:
            self._engine.add(message.request)
        except CoreError as error:
            refused = isinstance(error, RequestError)
            return SequenceOutput(message.request.request_id, [], "error", error=str(error), refused=refused)
        return None

    def _beat(self) -> None:
        now_s = self._clock.now_s()
        if now_s - self._last_beat_s < BEAT_S:
            return
        self._last_beat_s = now_s
        step_s = 0.0 if self._step_began_s is None else now_s - self._step_began_s
        send(self._replies, Beat(len(self._engine.scheduler.running), self._num_waiting, step_s))


def send(socket: zmq.Socket[bytes], message: FromEngine) -> None:
    socket.send(msgspec.msgpack.encode(message))


def main() -> int:
    """Load, then serve. Exit code 2: could not start; 1: could not go on. The reason goes to the server."""
    # Ctrl-C and a service's stop reach the whole group: the server alone decides how requests under way end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raw = sys.stdin.buffer.readline()
    if not raw:
        return 0
    start = msgspec.json.decode(raw, type=Start)
    if start.json_logs:
        log_as_json()
    threading.Thread(target=_end_with_server, daemon=True).start()
    # No context manager: closing waits for the pipe's reader, and the server may be gone.
    context = zmq.Context()
    requests, replies = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    requests.connect(start.requests)
    replies.connect(start.replies)
    code = _load_and_serve(start, requests, replies)
    context.destroy(linger=1000)
    return code


def _load_and_serve(start: Start, requests: zmq.Socket[bytes], replies: zmq.Socket[bytes]) -> int:
    try:
        with starting_bars() as bars:
            engine = Engine(start.config, bars.loading, compiling=bars.compiling)
    except CoreError as error:
        send(replies, Failed(type(error).__name__, str(error)))
        return 2
    gc.collect()
    gc.freeze()  # what was loaded stays: collecting it again and again would stall steps
    try:
        return serve(engine, requests, replies)
    finally:
        engine.close()


def serve(engine: Engine, requests: zmq.Socket[bytes], replies: zmq.Socket[bytes]) -> int:
    """Until told to stop, or until the engine cannot go on, which is said. Returns the exit code."""
    try:
        Loop(engine, requests, replies).run()
    except (CoreError, AccountsError) as error:
        send(replies, Failed(type(error).__name__, str(error)))
        return 1
    return 0


def _end_with_server() -> None:
    """The server holds the other end of standard input; when it is gone, nothing here is of use."""
    while os.read(sys.stdin.fileno(), 1):  # not through sys.stdin: its lock would be held when the interpreter ends
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
