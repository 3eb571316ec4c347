"""A message is lost, garbled or the last one: between server and engine, and between engine and ranks.

Nobody waits for ever: who is affected ends with an error, and so does who comes while there is no engine. Once it is
started again, as configured, it serves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from core.errors import DeviceError
from tests.core.engine.faults import ABORTED, EVERYONE, NUM_ALL, Bench, Got, faulty_device, spread
from tests.core.engine.pipes import MODES, Client, Fault, open_client

SOON_S = 20.0  # on a machine that does much else


@pytest.fixture(scope="module", params=[0, 1], ids=["depth0", "depth1"])
def bench(request, tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with faulty_device(tmp_path_factory.mktemp("plugin") / "faulty") as fuse:
        made = Bench(tiny_llama_dir, request.param, fuse)
        yield made
        made.engine.close()


async def serve_all(client: Client, which: Sequence[int]) -> dict[int, Got]:
    """What each of these gives, together; one is aborted once it has given two ids."""

    async def one(i: int) -> Got:
        each = Got()
        try:
            async for output in client.add(client.bench.request(i)):
                each.take(output)
                if i == ABORTED and len(each.ids) == 2:
                    await client.abort(str(i))
        except DeviceError as error:
            each.reason, each.error = "error", str(error)
        return each

    got = await asyncio.wait_for(asyncio.gather(*map(one, which)), SOON_S)
    return dict(zip(which, got, strict=True))


async def until(condition) -> None:
    async with asyncio.timeout(SOON_S):
        while not condition():
            await asyncio.sleep(0.005)


async def run_into_fault(client: Client, mode: str, nth: int) -> set[int]:
    """Everyone together until the fault has come, then some with the engine started again; who ended with an error."""
    bench, failed, generation = client.bench, set(), client._generation
    order = [(i + nth) % len(EVERYONE) for i in EVERYONE]
    bench.fuse.arm("message", nth, Fault(mode))
    while bench.fuse.armed:
        got = await serve_all(client, order)
        bench.check(got)
        failed = {i for i, each in got.items() if each.error}
    await until(lambda: client._generation > generation and client.healthy() is None)
    again = await serve_all(client, (1, 5))
    bench.check(again)
    assert not any(each.error for each in again.values())
    return failed


async def sweep(bench: Bench, cases: Sequence[tuple[str, int]]) -> list[set[int]]:
    client = await open_client(bench, "restart")
    try:
        return [await run_into_fault(client, mode, nth) for mode, nth in cases]
    finally:
        await client.stop()
        client.threads[-1].join()


def test_the_nth_message(bench: Bench) -> None:
    depth = bench.engine.plan.pipeline_depth
    cases = [(MODES[i % len(MODES)], nth) for i, nth in enumerate(spread(25)[depth::2])]
    failed = asyncio.run(sweep(bench, cases))
    assert sum(map(bool, failed)) > len(failed) / 2
    assert set().union(*failed) == set(EVERYONE)


@pytest.mark.heavy
def test_every_nth_message(bench: Bench) -> None:
    depth = bench.engine.plan.pipeline_depth
    cases = [(MODES[(nth + depth) % len(MODES)], nth) for nth in range(1, NUM_ALL + 1)]
    failed = asyncio.run(sweep(bench, cases))
    assert sum(map(bool, failed)) > NUM_ALL / 2
    assert set().union(*failed) == set(EVERYONE)


@pytest.mark.parametrize("mode", MODES)
def test_an_engine_that_is_not_to_be_started_again(bench: Bench, mode: str) -> None:
    async def scenario() -> None:
        client = await open_client(bench, "exit")
        try:
            bench.fuse.arm("message", 20, Fault(mode))
            got = await serve_all(client, EVERYONE)
            bench.check(got)
            assert any(each.error for each in got.values())
            await asyncio.wait_for(client.failed.wait(), SOON_S)
            why = client.healthy()
            assert why
            later = await serve_all(client, (0, 2))
            assert {each.error for each in later.values()} == {f"the engine is not running: {why}"}
            with pytest.raises(DeviceError, match="not running"):
                await client.inspect()
        finally:
            await client.stop()
            client.threads[-1].join()

    asyncio.run(scenario())


@pytest.mark.parametrize("mode", MODES)
def test_an_engine_whose_first_word_fails(bench: Bench, mode: str) -> None:
    bench.fuse.arm("message", 1, Fault(mode))
    words = "is broken" if mode == "garbled" else "ended with code -9 while loading"
    with pytest.raises(DeviceError, match=words):
        asyncio.run(open_client(bench, "restart"))
