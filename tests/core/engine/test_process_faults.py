"""Faults at real process boundaries: engine processes and ranks that die, or hear and say what is no message."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
import zmq

from core.config import EngineConfig
from core.engine.client import EngineClient
from core.engine.engine import Engine
from core.engine.front import Front
from core.errors import DeviceError
from core.request import Request, SamplingParams
from tests.core.engine.faults import Fuse
from tests.core.engine.pipes import GARBAGE
from tests.core.engine.test_client import collect, null, request, wait_for
from tests.shares import quick_of

SOON_S = 20.0


def garble_request(client: EngineClient) -> None:
    client._requests.send(GARBAGE)


def garble_reply(client: EngineClient) -> None:
    with zmq.Context() as context, context.socket(zmq.PUSH) as beside:
        beside.connect(f"ipc://{client._folder.name}/{client._generation}.replies")
        beside.send(GARBAGE)


@pytest.mark.parametrize("garble", quick_of([garble_request, garble_reply], garble_request))
def test_what_is_no_message_ends_the_engine(tiny_llama_dir, garble):
    async def scenario() -> None:
        client = await EngineClient.start(null(tiny_llama_dir, max_num_batched_tokens=1), "restart")
        try:
            running = asyncio.create_task(collect(client, "a", 500))
            waiting = asyncio.create_task(client.inspect())
            await waiting
            garble(client)
            with pytest.raises(DeviceError, match="a message between server and engine is broken"):
                await asyncio.wait_for(running, SOON_S)
            with pytest.raises(DeviceError, match="not running"):
                await collect(client, "b", 1)
            await wait_for(lambda: client.healthy() is None, "the engine did not come back", 60)
            assert await collect(client, "c", 2) == [101, 102]
        finally:
            await client.stop()

    asyncio.run(scenario())


@pytest.mark.heavy
def test_killed_at_the_nth_output(tiny_llama_dir):
    """One engine process after the other: what was given is right, and nobody waits."""

    async def kill_at(client: EngineClient, nth: int) -> None:
        num = 0
        async for output in client.add(request(client, f"n{nth}", 300)):
            if output.error:
                assert "ended with code -9" in output.error
                break
            assert output.new_ids == [(101 + num) % 384]
            num += 1
            if num == nth:
                assert client.pid is not None
                os.kill(client.pid, signal.SIGKILL)
        assert num >= nth

    async def scenario() -> None:
        client = await EngineClient.start(null(tiny_llama_dir, max_num_batched_tokens=1), "restart")
        try:
            for nth in (1, 2, 3, 10, 30, 100):
                dead = client.pid

                def is_back(dead: int | None = dead) -> bool:
                    return client.pid != dead and client.healthy() is None

                others = [collect(client, f"o{i}", 400) for i in range(3)]
                everyone = asyncio.gather(kill_at(client, nth), *others, return_exceptions=True)
                ended, *given = await asyncio.wait_for(everyone, SOON_S)
                assert ended is None
                for each in given:
                    assert each == [(101 + i) % 384 for i in range(400)] or "ended with code -9" in str(each)
                await wait_for(is_back, "the engine did not come back", 60)
                assert await collect(client, f"after{nth}", 3) == [101, 102, 103]
        finally:
            await client.stop()

    asyncio.run(scenario())


def test_nobody_is_there_to_take_a_message(tiny_llama_dir):
    """The engine is dead, and the client has not seen it yet: what it sends would wait for ever."""

    async def scenario() -> None:
        client = await EngineClient.start(null(tiny_llama_dir))
        try:
            assert client.pid is not None
            os.kill(client.pid, signal.SIGKILL)
            time.sleep(0.5)  # the pipe closes, while nothing here can notice
            with pytest.raises(DeviceError, match="ended with code -9"):
                await asyncio.wait_for(collect(client, "a", 3), SOON_S)
            await asyncio.wait_for(client.stop(), SOON_S)
        finally:
            await client.stop()

    asyncio.run(scenario())


class Split:
    """An engine of two ranks, here and in another process."""

    def __init__(self, model: Path) -> None:
        self.fuse = Fuse()
        config = EngineConfig(
            model=str(model), device="cpu", dtype="float32", pipeline_depth=1, tensor_parallel_size=2, num_kv_blocks=40
        )
        self.engine = Engine(config, tap=self.fuse.tap)
        self.front = Front(self.engine.info(), [])
        self.num_ids = 0

    def request(self, name: str) -> Request:
        sampling = SamplingParams(temperature=0.0, max_tokens=8)
        return self.front.request([7, 8, 9], sampling, request_id=name)

    def run(self, name: str) -> None:
        self.engine.add(self.request(name))
        while self.engine.busy:
            self.num_ids += sum(len(output.new_ids) for output in self.engine.step())

    def check_over(self) -> None:
        """No further step, and closing takes no time; the other rank is gone."""
        others = self.engine.executor._others
        assert others is not None
        with pytest.raises(DeviceError, match="the engine cannot go on"):
            self.engine.step()
        start_s = time.monotonic()
        self.engine.close()
        assert time.monotonic() - start_s < 5
        assert all(process.returncode is not None for process in others._processes)


@pytest.mark.heavy
@pytest.mark.parametrize("nth", [1, 20, 45])
def test_ranks_do_not_go_on_after_a_step_that_failed(tiny_llama_dir, nth):
    """Rank 0 would send parts of the next step into what rank 1 still takes for this one: wrong ids, or both wait."""
    split = Split(tiny_llama_dir)
    split.run("a")
    assert split.num_ids == 8
    split.fuse.arm("kernel", nth, RuntimeError("the kernel broke"))
    with pytest.raises(DeviceError, match="ranks cannot leave a step that failed: restart the engine"):
        split.run("b")
    assert not split.fuse.armed
    split.check_over()


@pytest.mark.heavy
@pytest.mark.parametrize("how", ["garbled", "killed"])
def test_a_rank_is_lost_between_steps(tiny_llama_dir, how):
    split = Split(tiny_llama_dir)
    split.run("a")
    others = split.engine.executor._others
    assert others is not None
    if how == "garbled":
        others.send_masks(GARBAGE)  # where it expects a plan
    else:
        others._processes[0].kill()
    others._processes[0].wait(30)
    with pytest.raises(DeviceError, match="rank 1 ended with code"):
        split.run("b")
    split.check_over()
