"""Whoever replays the events of a cache knows exactly what can be found in it."""

from __future__ import annotations

import random

import msgspec
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from core.config import EngineConfig
from core.errors import ConfigError
from core.kv.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, KVEventBatch, KVEvents, Publisher
from core.kv.prefix import KEY_BYTES, PrefixIndex, chain_keys, root_key
from tests.core.engine.test_scheduler import VOCAB, make, request, run


class Router:
    """A subscriber: learns keys, and checks that they follow from parent and token ids."""

    def __init__(self, spec: bytes) -> None:
        self.root = root_key(spec, "")
        self.keys: set[bytes] = set()
        self.num_removed = 0

    def replay(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, BlockStored):
                assert event.group_idx == 0
                parent = event.parent_block_hash
                keys = b"".join(event.block_hashes)
                assert keys == chain_keys(parent or self.root, event.token_ids, event.block_size)
                assert event.block_hashes
                assert not self.keys & set(event.block_hashes), "known already"
                self.keys |= set(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                assert self.keys >= set(event.block_hashes), "never heard of"
                self.num_removed += len(event.block_hashes)
                self.keys -= set(event.block_hashes)
            else:
                self.keys.clear()

    def agrees(self, index: PrefixIndex) -> bool:
        return len(self.keys) == len(index) and all(index.find(key) is not None for key in self.keys)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    depth=st.sampled_from([0, 1]),
    page=st.sampled_from([1, 2, 4]),
    num_pages=st.integers(12, 30),
    window=st.sampled_from([None, None, 3]),
)
def test_a_replay_has_the_keys_of_the_index(
    seed: int, depth: int, page: int, num_pages: int, window: int | None
) -> None:
    """After each step of a random workload with shared prefixes, evictions, preemption and aborts."""
    rng = random.Random(seed)
    scheduler, device = make(num_pages, page, depth, 8, 4, window)
    cache = scheduler.cache
    cache.events = events = KVEvents(page)
    router = Router(b"test")
    limit = scheduler.max_model_len
    prefix = [rng.randrange(VOCAB) for _ in range(limit // 2)]
    todo = []
    for i in range(12):
        prompt = prefix[: rng.randrange(1, len(prefix) + 1)] + [rng.randrange(VOCAB) for _ in range(rng.randrange(4))]
        prompt = prompt[: limit - 1]
        todo.append(request(i, prompt, rng.randrange(1, limit - len(prompt) + 1), priority=rng.randrange(2)))

    def between() -> None:
        router.replay(events.take())
        assert router.agrees(cache.indexes[0])
        if todo and rng.random() < 0.4:
            scheduler.add(todo.pop())
        alive = [seq.request.request_id for seq in scheduler.sequences()]
        if alive and rng.random() < 0.1:
            scheduler.abort(rng.choice(alive))

    while todo or scheduler.busy:
        run(scheduler, device, depth, between)
    scheduler.check_idle()
    router.replay(events.take())
    assert router.agrees(cache.indexes[0])


def test_such_workloads_evict_and_preempt() -> None:
    scheduler, device = make(num_pages=12, page=2, max_seqs=4)
    scheduler.cache.events = events = KVEvents(2)
    router = Router(b"test")
    for i in range(8):
        scheduler.add(request(i, [i, 1, 2, 3], 14))
    run(scheduler, device, 0, lambda: router.replay(events.take()))
    assert scheduler.num_preemptions > 0
    assert router.num_removed > 20


def test_one_event_for_each_run_of_pages() -> None:
    keys = chain_keys(root_key(b"test", ""), range(12), 2)
    each = [keys[i : i + KEY_BYTES] for i in range(0, len(keys), KEY_BYTES)]
    events = KVEvents(2)
    events.stored(keys, [0, 1, 3], list(range(12)))
    events.removed(each[0])
    events.removed(each[1])
    events.stored(keys, [], list(range(12)))
    events.stored(keys, [5], list(range(12)))
    assert events.take() == [
        BlockStored([each[0], each[1]], None, [0, 1, 2, 3], 2, None, None, None, 0),
        BlockStored([each[3]], each[2], [6, 7], 2, None, None, None, 0),
        BlockRemoved([each[0], each[1]], None, 0),
        BlockStored([each[5]], each[4], [10, 11], 2, None, None, None, 0),
    ]
    assert events.take() == []


def test_a_batch_is_what_subscribers_of_vllm_expect() -> None:
    stored = BlockStored([b"k"], None, [1], 1, None, None, None, 0)
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(KVEventBatch(1.5, [stored, AllBlocksCleared()])))
    assert plain["ts"] == 1.5
    assert plain["events"][0] == {
        "type": "BlockStored", "block_hashes": [b"k"], "parent_block_hash": None, "token_ids": [1], "block_size": 1,
        "lora_id": None, "medium": None, "lora_name": None, "group_idx": 0,
    }  # fmt: skip
    assert plain["events"][1] == {"type": "AllBlocksCleared"}


def test_an_endpoint_that_is_taken_is_named() -> None:
    with zmq.Context() as context, context.socket(zmq.PUB) as taken:
        port = taken.bind_to_random_port("tcp://127.0.0.1")
        with pytest.raises(ConfigError, match=f"kv_events is tcp://127.0.0.1:{port}: it cannot be bound .*in use"):
            Publisher(f"tcp://127.0.0.1:{port}")
    with pytest.raises(ConfigError, match="kv_events is nonsense"):
        Publisher("nonsense")


def test_events_need_a_prefix_cache() -> None:
    with pytest.raises(ConfigError, match="without prefix caching"):
        EngineConfig(kv_events="ipc:///tmp/x", enable_prefix_caching=False).check()
