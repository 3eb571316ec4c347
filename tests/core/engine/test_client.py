"""The engine process from outside: starting, aborting, dying, stopping."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from core import EngineConfig, SamplingParams
from core.engine.client import EngineClient
from core.engine.front import Front
from core.errors import ConfigError, DeviceError
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


def test_a_killed_engine_fails_its_requests_and_comes_back(tiny_llama_dir):
    async def scenario() -> None:
        client = await EngineClient.start(null(tiny_llama_dir, max_num_batched_tokens=1), "restart")
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


def test_an_engine_that_cannot_start_says_why():
    with pytest.raises(ConfigError, match="/nowhere does not exist"):
        asyncio.run(EngineClient.start(EngineConfig(model="/nowhere")))


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
