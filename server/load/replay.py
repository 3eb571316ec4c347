"""Sends requests when their time has come, so many at once at most, whatever became of those before."""

import asyncio
import time
from collections.abc import Callable, Sequence

from server.load.asks import Ask
from server.load.target import Outcome, Target


async def replay(
    target: Target, asks: Sequence[Ask], concurrency: int | None, tick: Callable[[int, int], None]
) -> tuple[list[Outcome], float]:
    """Outcomes in the order of `asks`, and the seconds from the first request to the last answer.

    A request that has to wait for others (`concurrency`) is timed from when it is sent.
    """
    gate = asyncio.Semaphore(concurrency or len(asks))
    start_s, done = time.perf_counter(), 0

    async def one(ask: Ask) -> Outcome:
        nonlocal done
        await asyncio.sleep(ask.at_s - (time.perf_counter() - start_s))
        async with gate:
            outcome = await target.send(ask)
        done += 1
        tick(done, len(asks))
        return outcome

    outcomes = await asyncio.gather(*map(one, asks))
    return outcomes, time.perf_counter() - start_s
