"""What the cache tells routers: which prefixes can be found here, as they come and go.

A message has three parts, with vLLM's names of fields, so that its subscribers can read it: an empty topic, the number
of the batch (8 bytes, big-endian, one more for each), and the batch in msgpack. There is at most one batch a step.
ZeroMQ drops batches for subscribers that are slow or come late, and never holds up the engine: whoever misses a number
no longer knows everything. Batch 0 says that an engine starts with nothing.

Told is what KV group 0 holds: the group that retains the most. Owns no page and no key; refuses nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
import zmq

from core.errors import ConfigError
from core.kv.prefix import KEY_BYTES

GROUP = 0  # the group that is told of
_QUEUED_BATCHES = 100_000  # per subscriber, before batches are dropped for it


class BlockStored(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, gc=False):
    """These pages can be found from now on, one after the other.

    block_hashes        keys (`core.kv.prefix`), 32 bytes each
    parent_block_hash   key of the page before the first; None: they start a sequence
    token_ids           of these pages
    block_size          tokens in a page
    lora_id, medium, lora_name   always None: for vLLM's subscribers
    """

    block_hashes: list[bytes]
    parent_block_hash: bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    group_idx: int | None = None


class BlockRemoved(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, gc=False):
    """These pages were evicted."""

    block_hashes: list[bytes]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Nothing can be found any more."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class KVEventBatch(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Events in the order in which they happened. `ts`: seconds since 1970."""

    ts: float
    events: list[Event]


class KVEvents:
    """Collects the events of a cache until they are taken."""

    def __init__(self, page_tokens: int) -> None:
        self._page_tokens = page_tokens
        self._events: list[Event] = []

    def stored(self, keys: bytes, positions: Sequence[int], token_ids: Sequence[int]) -> None:
        """Pages of one sequence became known. `positions` ascend; `keys` and `token_ids` are those of the sequence."""
        start = 0
        for i, position in enumerate(positions):
            if i + 1 == len(positions) or positions[i + 1] != position + 1:
                self._events.append(self._run(keys, positions[start], position + 1, token_ids))
                start = i + 1

    def _run(self, keys: bytes, first: int, end: int, token_ids: Sequence[int]) -> BlockStored:
        each = [keys[i * KEY_BYTES : (i + 1) * KEY_BYTES] for i in range(first, end)]
        parent = keys[(first - 1) * KEY_BYTES : first * KEY_BYTES] if first else None
        size = self._page_tokens
        ids = list(token_ids[first * size : end * size])
        return BlockStored(each, parent, ids, size, None, None, None, GROUP)

    def removed(self, key: bytes) -> None:
        """A page was evicted."""
        last = self._events[-1] if self._events else None
        if isinstance(last, BlockRemoved):
            last.block_hashes.append(key)
        else:
            self._events.append(BlockRemoved([key], None, GROUP))

    def take(self) -> list[Event]:
        """Every event since the last call."""
        taken, self._events = self._events, []
        return taken


class Publisher:
    """A PUB socket. `endpoint` such as tcp://127.0.0.1:5557 or ipc:///run/kv.

    Raises: ConfigError when it cannot be bound.
    """

    def __init__(self, endpoint: str) -> None:
        self._number = 0
        self._encoder = msgspec.msgpack.Encoder()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.set_hwm(_QUEUED_BATCHES)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ConfigError(
                f"kv_events is {endpoint}: it cannot be bound ({error.strerror}); "
                "give a free endpoint such as tcp://127.0.0.1:5557"
            ) from None
        self.publish([AllBlocksCleared()])

    def publish(self, events: list[Event]) -> None:
        """Send one batch. Never waits."""
        batch = KVEventBatch(time.time(), events)
        self._socket.send_multipart([b"", self._number.to_bytes(8, "big"), self._encoder.encode(batch)])
        self._number += 1

    def close(self) -> None:
        self._context.destroy(linger=200)
