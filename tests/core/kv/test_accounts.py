"""An idle engine whose books do not balance says so, by name, and ends."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import zmq

from core import LLM, EngineConfig, SamplingParams
from core.engine.front import Front
from core.engine.messages import Add, Failed, FromEngine, Ready, Start
from core.engine.scheduler import Scheduler
from core.kv.accounts import AccountsError, check_idle
from core.kv.cache import KVCache
from core.kv.groups import KVGroup
from core.kv.host import HostPool
from core.kv.pool import FILLING, VALID
from tests.core.engine.test_scheduler import make, request, run


def used() -> Scheduler:
    """A scheduler of two groups that has served, so that pages are cached."""
    scheduler, device = make(num_pages=30, window=3, num_swap=9)
    for i in range(6):
        scheduler.add(request(i, [i % 3] * 7, 6))
    run(scheduler, device, 0)
    return scheduler


def lose_free_page(scheduler: Scheduler) -> None:
    scheduler.cache.pools[1]._free.pop()


def free_twice(scheduler: Scheduler) -> None:
    pool = scheduler.cache.pools[0]
    pool._free.append(pool._free[0])


def lose_cached_page(scheduler: Scheduler) -> None:
    pool = scheduler.cache.pools[0]
    pool.state[pool.cached_pages()[0]] = FILLING


def validate_unknown_page(scheduler: Scheduler) -> None:
    pool = scheduler.cache.pools[0]
    pool.state[pool._free.pop()] = VALID
    pool.num_cached += 1


def forget_key(scheduler: Scheduler) -> None:
    cache = scheduler.cache
    cache.indexes[1].forget(int(cache.pools[1].cached_pages()[0]))


def never_release(scheduler: Scheduler) -> None:
    scheduler.cache.pools[0].allocate(2)


def lose_row(scheduler: Scheduler) -> None:
    scheduler._rows.pop()


def row_twice(scheduler: Scheduler) -> None:
    scheduler._rows[0] = scheduler._rows[1]


def leave_edit(scheduler: Scheduler) -> None:
    scheduler._edits.append((1, 0, 0, 1))


def lose_host_page(scheduler: Scheduler) -> None:
    scheduler.swaps.host.take([0, 1])


def free_host_page_twice(scheduler: Scheduler) -> None:
    scheduler.swaps.host.give([[3], []])


@pytest.mark.parametrize(
    ("corrupt", "words"),
    [
        (lose_free_page, r"group 1: \d+ free \+ \d+ cached pages are not all 29"),
        (free_twice, r"group 0: \d+ free \+ \d+ cached pages are not all 29"),
        (lose_cached_page, r"group 0: \d+ pages are valid and \d+ are counted as cached; .* keys"),
        (validate_unknown_page, r"group 0: \d+ pages are valid and the index has \d+ keys"),
        (forget_key, r"group 1: \d+ pages are valid and the index has \d+ keys"),
        (never_release, r"group 0: \d+ free \+ \d+ cached pages are not all 29"),
        (lose_row, r"rows: 3 of 4 are back"),
        (row_twice, r"rows: 3 of 4 are back, in a list of 4"),
        (leave_edit, r"changes: 1 are pending"),
        (lose_host_page, "group 1: 8 pages on the host are free, of 9"),
        (free_host_page_twice, "group 0: 10 pages on the host are free, of 9"),
    ],
)
def test_what_is_lost_is_named(corrupt: Callable[[Scheduler], None], words: str) -> None:
    scheduler = used()
    scheduler.check_idle()
    assert scheduler.cache.pools[0].num_cached > 2
    corrupt(scheduler)
    with pytest.raises(AccountsError, match=words):
        scheduler.check_idle()


def test_the_check_is_cheap() -> None:
    """256 rows, and two groups of as many pages as 1M tokens take."""
    cache = KVCache([KVGroup(1, 1, 1), KVGroup(1, 1, 1, retain=8)], [2**16, 2**16], 16, prefix=True)
    host = HostPool([2**14, 2**14])
    rows = list(range(1, 257))
    times_s = []
    for _ in range(100):
        start_s = time.perf_counter()
        check_idle(cache, host, rows, 256, 0, 0)
        times_s.append(time.perf_counter() - start_s)
    assert statistics.median(times_s) < 500e-6, "about 30 us on a quiet machine"


def test_llm_raises(tiny_llama_dir: Path) -> None:
    """At the end of what ran, and again each time it is idle: also when a request is aborted."""
    with LLM(str(tiny_llama_dir), device="null", num_kv_blocks=64) as llm:
        sampling = SamplingParams(temperature=0, max_tokens=4)
        assert llm.generate([[1, 2, 3]], sampling)[0].token_ids == [4, 5, 6, 7]
        llm.engine.cache.pools[0]._free.pop()
        for _ in range(2):
            with pytest.raises(AccountsError, match="group 0: 62 free"):
                llm.generate([[1, 2, 3]], sampling)
        llm.engine.add(Front(llm.engine.info(), []).request([1], sampling, request_id="a"))
        with pytest.raises(AccountsError, match="group 0"):
            llm.engine.abort("a")


LEAKY = """
import sys
from core.engine.process import main
from core.kv.pool import PagePool
release = PagePool.release
PagePool.release = lambda pool, pages: release(pool, pages[1:])
sys.exit(main())
"""


def test_the_engine_process_ends_with_code_1(tiny_llama_dir: Path, tmp_path: Path) -> None:
    """One whose pool forgets the first page of each release. What it says is what `on_failure` acts upon."""
    config = EngineConfig(model=str(tiny_llama_dir), device="null")
    start = Start(config, f"ipc://{tmp_path}/requests", f"ipc://{tmp_path}/replies")
    with zmq.Context() as context, context.socket(zmq.PUSH) as requests, context.socket(zmq.PULL) as replies:
        requests.bind(start.requests)
        replies.bind(start.replies)
        replies.rcvtimeo = 60_000
        requests.linger = 0
        process = subprocess.Popen([sys.executable, "-c", LEAKY], stdin=subprocess.PIPE)
        assert process.stdin is not None
        try:
            process.stdin.write(msgspec.json.encode(start) + b"\n")
            process.stdin.flush()
            said = []
            while not (said and isinstance(said[-1], Failed)):
                said.append(msgspec.msgpack.decode(replies.recv(), type=FromEngine))
                if isinstance(said[-1], Ready):
                    sampling = SamplingParams(temperature=0, max_tokens=3)
                    asked = Front(said[-1].info, []).request([7], sampling, request_id="a")
                    requests.send(msgspec.msgpack.encode(Add(asked)))
            assert process.wait(10) == 1
        finally:
            process.kill()
            process.stdin.close()
            process.wait()
    assert said[-1].kind == "AccountsError"
    assert "the engine is idle and its accounts do not balance: group 0" in said[-1].message
