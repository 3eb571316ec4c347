"""What the API process and the engine process say to each other: msgpack over two ZeroMQ pipes."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

import core.errors
from core.config import EngineConfig
from core.engine.front import ReadyInfo
from core.engine.snapshot import Snapshot
from core.errors import CoreError, DeviceError
from core.request import Request, SequenceOutput


class Start(msgspec.Struct, frozen=True, tag="start"):
    """The first message to an engine process, on its standard input. The addresses are ZeroMQ endpoints.

    json_logs   log one JSON object a line
    """

    config: EngineConfig
    requests: str
    replies: str
    json_logs: bool = False


class Add(msgspec.Struct, frozen=True, tag="add"):
    """Serve this request."""

    request: Request


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """End this request, if it has not ended."""

    request_id: str


class Inspect(msgspec.Struct, frozen=True, tag="inspect"):
    """Say what the engine holds, with at most so many sequences. The answer bears the same number."""

    number: int
    max_sequences: int


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End the engine process."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The model is loaded."""

    info: ReadyInfo


class Outputs(msgspec.Struct, frozen=True, tag="outputs"):
    """What one step added."""

    outputs: list[SequenceOutput]


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """The engine's loop turns.

    num_waiting   that the last step had no room for
    step_s        how long the step that it waits for has been running
    """

    num_running: int
    num_waiting: int
    step_s: float


class Inspected(msgspec.Struct, frozen=True, tag="inspected"):
    """What the engine held between two steps."""

    number: int
    snapshot: Snapshot


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The engine could not start or cannot go on. `kind` is the name of the error's class."""

    kind: str
    message: str

    def error(self) -> CoreError:
        """As it was raised in the engine process."""
        kind: Any = getattr(core.errors, self.kind, DeviceError)
        error: CoreError = kind(self.message)
        return error


ToEngine = Add | Abort | Inspect | Stop
FromEngine = Ready | Outputs | Beat | Inspected | Failed
T = TypeVar("T")


def understand(decoder: msgspec.msgpack.Decoder[T], raw: bytes) -> T:
    """The message in `raw`.

    Raises: DeviceError when it is none. Whose it was is not known, so nobody may wait for it any more.
    """
    try:
        return decoder.decode(raw)
    except msgspec.DecodeError as error:
        raise DeviceError(f"a message between server and engine is broken ({error}): start the engine again") from error
