"""The engine process from outside: starting, aborting, dying, stopping."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import msgspec
import pytest
import zmq

from core import EngineConfig, SamplingParams
from core.engine.client import EngineClient
from core.engine.front import Front
from core.errors import ConfigError, DeviceError
from core.kv.events import BlockRemoved, BlockStored, KVEventBatch
from core.kv.prefix import chain_keys, root_key
from core.request import Request


def request(client: EngineClient, name: str, max_tokens: int) -> Request:
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    return Front(client.info, []).request([100], sampling, request_id=name)


async def collect(client: EngineClient, name: str, max_tokens: int) -> list[int]:
    ids: list[int] = []
    async for output in client.add(request(client, name, max_tokens)):
        ids += output.new_ids
        if output.error:
            raise DeviceError(output.error)
    return ids


async def wait_for(condition, what: str, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


def null(model: Path, **more) -> EngineConfig:
    return EngineConfig(model=str(model), device="null", **more)


def test_outputs_and_abort(tiny_llama_dir):
    async def scenario() -> None:
        client = await EngineClient.start(null(tiny_llama_dir))
        try:
            assert client.healthy() is None
            assert await collect(client, "a", 4) == [101, 102, 103, 104]
            many = await asyncio.gather(*[collect(client, f"m{i}", 50) for i in range(20)])
            assert all(ids == [(101 + i) % 384 for i in range(50)] for ids in many)
            outputs = client.add(request(client, "b", 400))
            await anext(outputs)
            await client.abort("b")
            last = [output async for output in outputs][-1]
            assert last.finish_reason == "abort"
            await wait_for(lambda: client.last_beat.num_running == 0, "the aborted request still runs")
        finally:
            pid = client.pid
            await client.stop()
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    asyncio.run(scenario())


def test_a_killed_engine_fails_its_requests_and_comes_back(tiny_llama_dir, tmp_path):
    """Its trace is kept beside that of the engine started in its place."""
    trace = tmp_path / "trace.json"

    async def scenario() -> None:
        config = null(tiny_llama_dir, max_num_batched_tokens=1, profile=str(trace))
        client = await EngineClient.start(config, "restart")
        try:
            running = asyncio.create_task(collect(client, "a", 380))
            await asyncio.sleep(0.05)
            assert client.pid is not None
            os.kill(client.pid, signal.SIGSTOP)  # so that it cannot finish first
            os.kill(client.pid, signal.SIGKILL)
            with pytest.raises(DeviceError, match="ended with code -9"):
                await asyncio.wait_for(running, 2)
            assert client.healthy()
            with pytest.raises(DeviceError, match="not running"):
                await collect(client, "b", 1)
            await wait_for(lambda: client.healthy() is None, "the engine did not come back", 60)
            assert await collect(client, "c", 2) == [101, 102]
        finally:
            await client.stop()

    asyncio.run(scenario())
    first, second = (msgspec.json.decode(path.read_bytes()) for path in (trace, Path(f"{trace}.2")))
    assert first[0]["name"] == "process_name"
    assert [event["name"] for event in second].count("launch") == 2
    assert [event["name"] for event in second].count("encode") >= 1


def test_an_engine_that_cannot_start_says_why():
    with pytest.raises(ConfigError, match="/nowhere does not exist"):
        asyncio.run(EngineClient.start(EngineConfig(model="/nowhere")))


@pytest.mark.heavy
def test_a_lost_rank_ends_the_engine(tiny_llama_dir):
    """The rank's process is found through the engine's children; killing it must not hang anything."""
    import psutil

    async def scenario() -> None:
        config = EngineConfig(model=str(tiny_llama_dir), device="cpu", tensor_parallel_size=2, num_kv_blocks=64)
        client = await EngineClient.start(config)
        try:
            assert len(await collect(client, "a", 3)) == 3
            ranks = [child for child in psutil.Process(client.pid).children() if "core.engine.rank" in child.cmdline()]
            assert len(ranks) == 1
            ranks[0].kill()
            await asyncio.wait_for(client.failed.wait(), 10)
            assert "rank 1 ended with code -9" in str(client.healthy())
        finally:
            await client.stop()

    asyncio.run(scenario())


def test_the_client_side_never_loads_torch():
    program = "import core.engine.client, core.engine.front, core.engine.output, sys; assert 'torch' not in sys.modules"
    import subprocess

    subprocess.run([sys.executable, "-c", program], check=True)


def test_what_the_engine_holds(tiny_llama_dir):
    async def scenario() -> None:
        client = await EngineClient.start(null(tiny_llama_dir, max_num_seqs=2, max_num_batched_tokens=2))
        try:
            empty = await client.inspect()
            assert (empty.num_steps, empty.num_prefix_queries, empty.sequences) == (0, 0, [])
            assert empty.groups[0].num_free == empty.groups[0].num_pages >= 64
            many = [asyncio.create_task(collect(client, f"m{i}", 400)) for i in range(5)]
            while (busy := await client.inspect(4)).num_running < 2:
                assert not any(task.done() for task in many)
            assert (busy.num_running, busy.num_waiting) == (2, 3)
            assert [seq.status for seq in busy.sequences] == ["running", "running", "waiting", "waiting"]
            assert {seq.num_prompt for seq in busy.sequences} == {1}
            pages = [seq.num_pages[0] for seq in busy.sequences]
            assert max(pages) <= busy.groups[0].num_used <= sum(pages), "equal content is shared"
            await asyncio.gather(*many)
            first, second = await asyncio.gather(client.inspect(0), client.inspect(0))
            assert first == second
            group = first.groups[0]
            assert (group.num_used, group.num_cached + group.num_free) == (0, group.num_pages)
            assert group.num_keys == group.num_cached > 0
            await check_hits(client)
            await check_death(client)
        finally:
            await client.stop()

    asyncio.run(scenario())


async def check_hits(client: EngineClient) -> None:
    """Queries and hits count tokens."""
    before = await client.inspect(0)
    sampling = SamplingParams(temperature=0.0, max_tokens=1)
    for name in ("a", "b"):
        asked = Front(client.info, []).request(list(range(40)), sampling, request_id=name)
        [output] = [output async for output in client.add(asked)]
    assert output.num_cached == 32
    after = await client.inspect(0)
    assert after.num_prefix_queries - before.num_prefix_queries == 2 * 39
    assert after.num_prefix_hits - before.num_prefix_hits == 32
    assert after.num_steps == before.num_steps + 20 + 4


async def check_death(client: EngineClient) -> None:
    """Who waits for an answer of an engine that dies learns of it."""
    assert client.pid is not None
    os.kill(client.pid, signal.SIGSTOP)
    asked = asyncio.create_task(client.inspect())
    await asyncio.sleep(0.1)
    os.kill(client.pid, signal.SIGKILL)
    with pytest.raises(DeviceError, match="ended with code -9"):
        await asyncio.wait_for(asked, 2)
    with pytest.raises(DeviceError, match="not running"):
        await client.inspect()


def test_a_router_follows_the_cache_over_a_socket(tiny_llama_dir, tmp_path):
    """Evictions and preemption included; no batch is missing, and there is at most one a step."""
    endpoint = f"ipc://{tmp_path}/events"
    keys: set[bytes] = set()
    stored: set[bytes] = set()
    numbers: list[int] = []

    def listen(socket: zmq.Socket[bytes]) -> None:
        while socket.poll(300):
            topic, number, batch = socket.recv_multipart()
            assert topic == b""
            numbers.append(int.from_bytes(number, "big"))
            for event in msgspec.msgpack.decode(batch, type=KVEventBatch).events:
                if isinstance(event, BlockStored):
                    keys.update(event.block_hashes)
                    stored.update(event.block_hashes)
                elif isinstance(event, BlockRemoved):
                    keys.difference_update(event.block_hashes)

    async def scenario(socket: zmq.Socket[bytes]) -> None:
        config = null(tiny_llama_dir, kv_events=endpoint, num_kv_blocks=12, block_size=4, max_num_seqs=4)
        client = await EngineClient.start(config)
        try:
            front = Front(client.info, [])
            sampling = SamplingParams(temperature=0.0, max_tokens=24)
            requests = [front.request([i] * 8, sampling, request_id=str(i)) for i in range(12)]

            async def run(asked: Request) -> list[int]:
                return [i async for output in client.add(asked) for i in output.new_ids]

            outputs = await asyncio.gather(*map(run, requests))
            held = await client.inspect()
            await asyncio.to_thread(listen, socket)
            assert held.num_preemptions > 0
            assert len(keys) == held.groups[0].num_keys < len(stored)
            root, known = root_key(client.info.spec, ""), set()
            for asked, ids in zip(requests, outputs, strict=True):
                every = chain_keys(root, [*asked.prompt_ids, *ids[:-1]], 4)
                known |= {every[i : i + 32] for i in range(0, len(every), 32)}
            assert stored == known
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            assert numbers[0] <= 1, "batch 0 may come before the subscription"
            assert len(numbers) <= held.num_steps + 1
        finally:
            await client.stop()

    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.linger = 0
        socket.reconnect_ivl = 10
        socket.subscribe(b"")
        socket.connect(endpoint)
        asyncio.run(scenario(socket))
