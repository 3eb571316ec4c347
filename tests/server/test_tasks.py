"""The server in this process, with its engine in another: no task of it outlives the request that it was made for."""

import asyncio
import json
import random
from typing import Any

import httpx

from core.config import EngineConfig
from server.listen import Address
from server.run import Options, serve

CONFIG = EngineConfig(model="smollm2", device="null", max_num_seqs=16, max_model_len=512)
ADDRESS = Address(host="127.0.0.1", port=0)
OPTIONS = Options(address=ADDRESS, names=("m",), on_failure="exit", generation_config="auto", override="{}")
PLAIN: dict[str, Any] = {"model": "m", "max_tokens": 20, "temperature": 0, "ignore_eos": True}
HI = [{"role": "user", "content": "Hi"}]
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", PLAIN | {"prompt": [[5], [6]], "n": 2}),
    ("/v1/chat/completions", PLAIN | {"messages": HI, "guided_regex": "[a-z]{9}"}),
    ("/v1/messages", {"model": "m", "max_tokens": 20, "messages": HI}),
    ("/v1/responses", {"model": "m", "max_output_tokens": 20, "input": "Hi"}),
    ("/v1/completions", PLAIN | {"prompt": [5], "max_tokens": 10**6}),  # which is refused
]
NUM_REQUESTS = 100


def test_no_task_is_left_over() -> None:
    asyncio.run(a_third_hang_up())


async def a_third_hang_up() -> None:
    """At random times: while they wait, before the first token, in the middle."""
    with ADDRESS.bind() as listener:
        server = asyncio.create_task(serve(CONFIG, listener, OPTIONS))
        url = ADDRESS.url(listener).removesuffix("/v1")
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            while (await status(client)) != 200:
                assert not server.done()
                await asyncio.sleep(0.05)
            before = await num_tasks(client)
            draw, gate = random.Random(0), asyncio.Semaphore(24)
            left = await asyncio.gather(*(ask(client, i, draw, gate) for i in range(NUM_REQUESTS)))
            assert NUM_REQUESTS / 10 < sum(left) < NUM_REQUESTS / 2
            for _ in range(100):
                if await num_tasks(client) == before:
                    break
                await asyncio.sleep(0.05)
            assert await num_tasks(client) == before, asyncio.all_tasks()
        server.cancel()
        await asyncio.wait([server])


async def status(client: httpx.AsyncClient) -> int:
    try:
        return (await client.get("/health")).status_code
    except httpx.TransportError:
        return 0


async def num_tasks(client: httpx.AsyncClient) -> int:
    """Of which one waits on a connection that stays open."""
    await client.get("/live")
    return len(asyncio.all_tasks())


async def ask(client: httpx.AsyncClient, i: int, draw: random.Random, gate: asyncio.Semaphore) -> bool:
    """Whether it hung up before the end."""
    path, body = ASKED[i % len(ASKED)]
    body = body | {"stream": True} if draw.random() < 0.5 else body
    patience_s = draw.random() * 0.3 if draw.random() < 1 / 3 else 60
    async with gate:
        try:
            async with asyncio.timeout(patience_s):
                raw = json.dumps(body).encode()
                answer = await client.post(path, content=raw, headers={"Connection": "close"})
        except TimeoutError:
            return True
    assert answer.status_code == (400 if body.get("max_tokens") == 10**6 else 200), answer.text
    return False
