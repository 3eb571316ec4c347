"""What users reported of other servers (research/features, section 8), each as the smallest request that shows it.

Cases of a subject that has tests of its own stand there: look for "Source:" in this folder.
"""

import asyncio
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from processes import Server, serve

SHORT = {"model": "smollm2", "prompt": [5000], "max_tokens": 2}


def still_serves(server: Server) -> None:
    assert server.post("/v1/completions", SHORT).status_code == 200


def within_2_s_nothing_is_held(server: Server) -> None:
    deadline_s = time.monotonic() + 2
    while True:
        held = server.get("/kv").json()
        if not held["num_running"] and not held["num_waiting"] and not any(g["num_used"] for g in held["groups"]):
            break
        assert time.monotonic() < deadline_s, held
    for group in held["groups"]:
        assert group["num_free"] + group["num_cached"] == group["num_pages"]


@pytest.mark.parametrize("stream", [False, True])
def test_case_7_nothing_is_generated_after_a_close(null_server: Server, stream: bool) -> None:
    """Source: https://github.com/vllm-project/vllm/issues/54947."""
    body = {"model": "smollm2", "prompt": [[i] for i in range(1, 9)], "max_tokens": 2000, "ignore_eos": True}
    url = f"{null_server.base_url}/v1/completions"
    with httpx.Client() as client:
        if stream:
            with client.stream("POST", url, json=body | {"stream": True}) as response:
                lines = response.iter_lines()
                assert next(lines).startswith("data: {")
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post(url, json=body, timeout=0.3)
    within_2_s_nothing_is_held(null_server)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_case_13_one_token_too_many_is_a_real_400(null_server: Server, path: str) -> None:
    """Also when streaming; and with the true limit. Source: https://github.com/ollama/ollama/issues/17889."""
    many = (
        {"prompt": [7] * 2049}
        if path == "/v1/completions"
        else {"messages": [{"role": "user", "content": "a b " * 2000}]}
    )
    answer = null_server.post(path, {"model": "smollm2", "stream": True, **many})
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    assert "2048" in answer.json()["error"]["message"]
    still_serves(null_server)


def test_case_15_a_frozen_loop_shows(null_server: Server) -> None:
    """The step loop stands still with a request in it, and the process lives: /health is not green.

    Source: https://github.com/vllm-project/vllm/issues/53130.
    """
    body = {"model": "smollm2", "prompt": [7], "max_tokens": 500, "ignore_eos": True, "stream": True}
    with null_server.client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        null_server.engine().suspend()
        try:
            deadline_s = time.monotonic() + 5
            while (health := null_server.get("/health")).status_code == 200:
                assert time.monotonic() < deadline_s
                time.sleep(0.05)
            assert health.status_code == null_server.get("/ping").status_code == 503
            assert null_server.get("/live").status_code == 200
        finally:
            null_server.engine().resume()
        assert list(lines)[-2:] == ["data: [DONE]", ""]
    assert null_server.get("/health").status_code == 200


def test_case_17_the_accounts_balance(null_server: Server) -> None:
    """256 requests that share a prefix, of which a third hang up.

    Source: https://github.com/sgl-project/sglang/issues/35270.
    """
    prompt = list(range(100, 200))
    body = {"model": "smollm2", "max_tokens": 12, "ignore_eos": True, "stream": True}

    async def ask(client: httpx.AsyncClient, i: int) -> None:
        async with client.stream("POST", "/v1/completions", json=body | {"prompt": [*prompt, 1000 + i]}) as response:
            lines = response.aiter_lines()
            async for line in lines:
                if i % 3 == 0 and line:
                    return
        assert i % 3

    async def run() -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=null_server.base_url, timeout=60, limits=limits) as client:
            await asyncio.gather(*(ask(client, i) for i in range(256)))

    asyncio.run(run())
    within_2_s_nothing_is_held(null_server)
    still_serves(null_server)


def test_case_18_internal_fields_are_refused(narrow_server: Server) -> None:
    """With a prompt of more tokens than a step takes. Source: https://github.com/sgl-project/sglang/issues/36855."""
    long = SHORT | {"prompt": [7] * 3000}
    answer = narrow_server.post("/v1/completions", long | {"bootstrap_host": "2.2.2.2"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "bootstrap_host"
    assert narrow_server.post("/v1/completions", long).status_code == 200


def test_case_19_a_salt_is_a_world_of_its_own(null_server: Server) -> None:
    """Nothing of another salt is found, whatever names are; adapters are refused for now.

    Source: https://github.com/vllm-project/vllm/issues/44701.
    """
    prompt = list(range(3000, 3100))

    def num_cached(**more: Any) -> int:
        answer = null_server.post("/v1/completions", SHORT | {"prompt": prompt, **more})
        return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [num_cached(), num_cached()] == [0, 96]
    assert [num_cached(cache_salt="X"), num_cached(cache_salt="X")] == [0, 96]
    assert num_cached(cache_salt="smollm2") == 0
    assert num_cached(model="other-name") == 96  # another name of the same model
    assert null_server.post("/v1/completions", SHORT | {"model": "X"}).status_code == 404
    for field in ("lora_request", "lora_path", "adapter"):
        assert null_server.post("/v1/completions", SHORT | {field: "X"}).status_code == 400


@pytest.fixture(scope="module")
def two_slots(tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    args = ("--device", "cpu", "--dtype", "float32", "--max-num-seqs", "2", "--served-model-name", "tiny")
    with serve(tmp_path_factory.mktemp("two"), str(tiny_llama_dir), *args) as server:
        yield server


def test_case_21_conversations_do_not_mix(two_slots: Server) -> None:
    """Eight at once through two slots, in two turns each: every answer is what it is alone.

    Source: https://github.com/ggml-org/llama.cpp/issues/27148.
    """
    secrets = [f"the word is {word}" for word in ("fox", "dog", "day", "lazy", "jump", "over", "quick", "brown")]

    def talk(number: int, salt: str) -> list[str]:
        messages, said = [], []
        for turn in (secrets[number], "what is the word?"):
            messages.append({"role": "user", "content": turn})
            body = {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 24, "cache_salt": salt}
            answer = two_slots.post("/v1/chat/completions", body | {"ignore_eos": True}).json()
            said.append(answer["choices"][0]["message"]["content"])
            messages.append({"role": "assistant", "content": said[-1]})
        return said

    alone = [talk(i, f"alone {i}") for i in range(8)]
    assert len({tuple(said) for said in alone}) == 8
    order = list(range(8)) * 2
    random.Random(0).shuffle(order)
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda i: talk(i, "together"), order))
    assert together == [alone[i] for i in order]
