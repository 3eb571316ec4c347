"""The ranks above 0 of a model that is split: one process each, fed with the same plans.

A rank reads messages from its standard input (4 bytes of length, then msgpack): first the configuration, then plans,
each followed by the masks that it waits for, if any. End of input ends it, so no rank outlives the engine. Ranks meet
through torch.distributed on 127.0.0.1.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from typing import IO, TYPE_CHECKING

import msgspec

from core.config import EngineConfig
from core.engine.step import StepPlan
from core.errors import DeviceError
from core.model.spec import Shard

if TYPE_CHECKING:
    from core.engine.build import Ranks

_LENGTH_BYTES = 4


class Joining(msgspec.Struct, frozen=True):
    """The first message to a rank."""

    config: EngineConfig
    rank: int
    port: int


class OtherRanks:
    """Processes of ranks 1 .. N - 1, as rank 0 sees them."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._port = _free_port()
        self._processes = [
            subprocess.Popen([sys.executable, "-m", "core.engine.rank"], stdin=subprocess.PIPE)
            for _ in range(1, config.tensor_parallel_size)
        ]
        for rank, process in enumerate(self._processes, start=1):
            _write(process, msgspec.msgpack.encode(Joining(config, rank, self._port)))

    def join(self) -> Ranks:
        """Meet the others, as rank 0. Call it on the device thread."""
        return join(self._config, 0, self._port)

    def send(self, plan: StepPlan) -> None:
        """Raises: DeviceError when a rank is gone."""
        self._send(msgspec.msgpack.encode(plan))

    def send_masks(self, words: bytes) -> None:
        """What the plan sent last waits for. Raises: DeviceError when a rank is gone."""
        self._send(words)

    def _send(self, raw: bytes) -> None:
        for process in self._processes:
            _write(process, raw)

    def check(self) -> None:
        """Raises: DeviceError when a rank is gone."""
        for rank, process in enumerate(self._processes, start=1):
            if process.poll() is not None:
                raise DeviceError(f"rank {rank} ended with code {process.returncode}: restart the engine")

    def kill(self) -> None:
        """End the processes at once, whatever they do."""
        for process in self._processes:
            process.kill()

    def close(self) -> None:
        """End the processes, and leave the group. Call it on the device thread."""
        for process in self._processes:
            assert process.stdin is not None
            # What a rank that is gone did not take is still in the buffer, and closing tries to write it.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        leave()


def join(config: EngineConfig, rank: int, port: int) -> Ranks:
    """Meet the other ranks, by what the device's plugin names for it."""
    import torch.distributed as dist

    from core.engine.build import Ranks
    from core.plugin import loader

    device = loader.choose(loader.discover(), config.device).device
    assert device is not None
    size = config.tensor_parallel_size
    backend = device.collective_backend()
    dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    return Ranks(Shard(rank, size), dist.group.WORLD)


def leave() -> None:
    """Undo `join`, if it was done."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def read(stream: IO[bytes]) -> bytes | None:
    """The next message, or None at the end of input."""
    head = stream.read(_LENGTH_BYTES)
    if len(head) < _LENGTH_BYTES:
        return None
    size = int.from_bytes(head, "little")
    body = stream.read(size)
    return body if len(body) == size else None


def _write(process: subprocess.Popen[bytes], raw: bytes) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(len(raw).to_bytes(_LENGTH_BYTES, "little") + raw)
        process.stdin.flush()
    except BrokenPipeError as error:
        raise DeviceError(f"a rank ended with code {process.poll()}: restart the engine") from error


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
