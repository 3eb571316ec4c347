"""Many clients at once through real HTTP: none fails, memory is bounded, and nothing is left over.

The clients are asyncio ones that do little more than read, because they share the machine with the server.
"""

import asyncio
import json
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from processes import Server, serve

pytestmark = pytest.mark.heavy

NUM_STREAMS = 1000
NUM_TOKENS = 20
NUM_REQUESTS = 10_000
LIMIT_BYTES = 150_000_000
"""What the API process may gain while it serves the streams."""


@dataclass
class Told:
    """What one client saw: when its events came, and what they said."""

    times_s: list[float] = field(default_factory=list)
    events: list[bytes] = field(default_factory=list)
    status: int = 0

    @property
    def done(self) -> bool:
        return self.events[-1:] == [b"[DONE]"]

    @property
    def num_tokens(self) -> int:
        """As the usage says that comes last."""
        return int(json.loads(self.events[-2])["usage"]["completion_tokens"])


async def send(server: Server, body: dict[str, object]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask for a streamed completion, on a connection of its own."""
    host, _, port = server.base_url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    raw = json.dumps(body | {"stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(raw)}\r\n\r\n"
    writer.write(head.encode() + raw)
    return reader, writer


async def whole_answer(server: Server, body: dict[str, object]) -> bytes:
    """All bytes of one streamed completion."""
    reader, writer = await send(server, body)
    answer = await reader.read()
    writer.close()
    return answer


async def ask(server: Server, body: dict[str, object], leave_after_s: float | None = None) -> Told:
    """One streamed completion, event by event; hangs up after so long."""
    reader, writer = await send(server, body)
    told = Told()
    try:
        async with asyncio.timeout(leave_after_s):
            told.status = int((await reader.readline()).split()[1])
            async for line in reader:
                if line.startswith(b"data: "):
                    told.times_s.append(time.perf_counter())
                    told.events.append(line[6:].strip())
    except TimeoutError:
        pass
    finally:
        writer.transport.abort()
    return told


def body(i: int, num_tokens: int) -> dict[str, object]:
    """Greedy: a draw at random from a thousand vocabularies takes the null device a second."""
    plain = {"model": "smollm2", "temperature": 0, "ignore_eos": True, "stream_options": {"include_usage": True}}
    return plain | {"prompt": [500 + 37 * i % 40_000], "max_tokens": num_tokens}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    args = ("--device", "null", "--max-num-seqs", "1K", "--max-model-len", "1K")
    with serve(tmp_path, "smollm2", *args) as started:
        yield started


class Peak:
    """The most that a process held while the block ran, in bytes."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.begin = self.most = self._process.memory_info().rss
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            self.most = max(self.most, self._process.memory_info().rss)


@pytest.mark.timeout(600)
def test_a_thousand_streams(server: Server) -> None:
    """All under way at once, for the engine stands still until all of them wait; every one gets all its tokens.

    Printed: what a token of a stream takes, from the engine's start to the stream's end, more than in one stream alone.
    """
    alone_s = time.perf_counter()
    alone = asyncio.run(ask(server, body(1, NUM_TOKENS)))
    assert alone.num_tokens == NUM_TOKENS
    alone_ms = per_token_ms(alone, alone_s)

    async def run() -> tuple[list[Told], float]:
        server.engine().suspend()
        streams = [asyncio.create_task(ask(server, body(i, NUM_TOKENS))) for i in range(NUM_STREAMS)]
        await until_quiet(psutil.Process(server.process.pid))
        server.engine().resume()
        start_s = time.perf_counter()
        return await asyncio.gather(*streams), start_s

    with Peak(server.process.pid) as peak:
        told, start_s = asyncio.run(run())
    assert {one.status for one in told} == {200}
    assert all(one.done for one in told)
    assert {one.num_tokens for one in told} == {NUM_TOKENS}
    assert min(one.times_s[0] for one in told) > start_s
    assert peak.most - peak.begin < LIMIT_BYTES
    added_ms = sorted(per_token_ms(one, start_s) - alone_ms for one in told)
    took_s = max(one.times_s[-1] for one in told) - start_s
    print(  # noqa: T201
        f"{NUM_STREAMS} streams: {NUM_STREAMS * NUM_TOKENS / took_s:,.0f} tokens/s; a token takes {alone_ms:.2f} ms "
        f"alone, and p50 {at(added_ms, 0.5):.0f} ms, p99 {at(added_ms, 0.99):.0f} ms more together; "
        f"memory of the API process {(peak.most - peak.begin) / 1e6:.0f} MB more"
    )
    last = server.metrics()
    assert last["num_requests_running"] == last["num_requests_waiting"] == 0


def test_tokens_a_second(server: Server) -> None:
    """Printed: what all streams get together, with clients that only take bytes in. Asserted is half of what a machine
    with two cores gives while others work there, too."""
    num_streams, num_tokens = 256, 256

    async def read_all() -> list[bytes]:
        return await asyncio.gather(*(whole_answer(server, body(i, num_tokens)) for i in range(num_streams)))

    asyncio.run(ask(server, body(1, 1)))
    start_s = time.perf_counter()
    answers = asyncio.run(read_all())
    rate = num_streams * num_tokens / (time.perf_counter() - start_s)
    print(f"{num_streams} streams of {num_tokens} tokens: {rate:,.0f} tokens/s")  # noqa: T201
    assert all(b'"completion_tokens":256' in answer and b"data: [DONE]" in answer for answer in answers)
    assert rate > 5000


async def until_quiet(process: psutil.Process) -> None:
    """Until a process does next to nothing, having done something: for a second, it uses a tenth of one."""
    deadline_s, used_s = time.monotonic() + 120, -1.0
    while (now_s := sum(process.cpu_times()[:2])) - used_s > 0.1:
        assert time.monotonic() < deadline_s
        used_s = now_s
        await asyncio.sleep(1)


def per_token_ms(told: Told, start_s: float) -> float:
    """From `start_s` to the last token, for each. After it come the usage and the end."""
    return 1000 * (told.times_s[-3] - start_s) / NUM_TOKENS


def at(values: list[float], share: float) -> float:
    return values[int(share * (len(values) - 1))]


@dataclass(frozen=True)
class Held:
    """What a process has."""

    threads: int
    files: int
    bytes: int

    @classmethod
    def by(cls, pid: int) -> "Held":
        process = psutil.Process(pid)
        return cls(process.num_threads(), process.num_fds(), process.memory_info().rss)


@pytest.mark.timeout(900)
def test_nothing_is_left_of_many_that_hang_up(server: Server) -> None:
    """A third of the clients leave at random times: before the first token, and in the middle."""
    draw, left = random.Random(0), 0

    async def run(count: int) -> None:
        nonlocal left
        gate = asyncio.Semaphore(200)

        async def one(i: int) -> None:
            nonlocal left
            leaves = draw.random() < 1 / 3
            async with gate:
                told = await ask(server, body(i, draw.randrange(1, 30)), draw.random() * 0.3 if leaves else None)
            left += not told.done
            assert leaves or told.done

        await asyncio.gather(*(one(i) for i in range(count)))

    asyncio.run(run(1000))  # what is allocated once, is
    pids = (server.process.pid, server.engine().pid)
    wait_until_idle(server)
    before, before_left = [Held.by(pid) for pid in pids], left
    asyncio.run(run(NUM_REQUESTS))
    wait_until_idle(server)
    assert left - before_left > NUM_REQUESTS / 10
    for pid, held in zip(pids, before, strict=True):
        now = Held.by(pid)
        assert (now.threads, now.files) == (held.threads, held.files)
        assert now.bytes - held.bytes < 30_000_000
    aborted = server.metrics()['request_success_total{finished_reason="abort"}']
    assert NUM_REQUESTS / 20 < aborted <= left  # some left before their request was whole
    assert asyncio.run(ask(server, body(1, 3))).num_tokens == 3


def wait_until_idle(server: Server) -> None:
    deadline_s = time.monotonic() + 5
    while True:
        held = server.get("/kv").json()
        if not (held["num_running"] or held["num_waiting"] or any(g["num_used"] for g in held["groups"])):
            break
        assert time.monotonic() < deadline_s, held
    for group in held["groups"]:
        assert group["num_free"] + group["num_cached"] == group["num_pages"]
