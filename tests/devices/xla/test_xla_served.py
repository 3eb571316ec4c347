"""smollm2 through a real server on the XLA device: the text of the cpu device, however requests are scheduled."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from core import LLM, SamplingParams
from tests.server.processes import Server, serve

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]
MARGIN = 0.01  # float32: how far apart the two best logits must be for the text to be certain
NUM_TOKENS = 16
LONG = "It was a bright cold day in April, and the clocks were striking thirteen. " * 20
BEGINNINGS = ("The capital of France is", "Water boils at", "def add(a, b):", "Once upon a time", "The sky is")
PROMPTS = [f"{i}. {BEGINNINGS[i % 5]}" for i in range(32)]
PAGES, MAX_LEN = 60, 512  # 32 sequences of 3 pages do not fit


@pytest.fixture(scope="module")
def wanted() -> dict[str, str]:
    """What the cpu device says after each prompt, as far as it is certain."""
    prompts = [LONG, LONG + "Winston", *PROMPTS]
    sampling = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=2)
    with LLM("smollm2", device="cpu", dtype="float32", num_kv_blocks=200, max_model_len=MAX_LEN) as llm:
        found = {}
        for prompt, output in zip(prompts, llm.generate(prompts, sampling), strict=True):
            close = (i for i, p in enumerate(output.logprobs) if p.top_logprobs[0] - p.top_logprobs[1] < MARGIN)
            found[prompt] = llm.tokenizer.decode(output.token_ids[: next(close, NUM_TOKENS)])
    return found


@pytest.fixture(scope="module", params=[0, 1], ids=["depth0", "depth1"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    cache = tmp_path_factory.getbasetemp() / "shared-cache"
    size = ("--num-kv-blocks", str(PAGES), "--max-model-len", str(MAX_LEN), "--pipeline-depth", str(request.param))
    folder, env = tmp_path_factory.mktemp("xla"), {"XDG_CACHE_HOME": str(cache)}
    with serve(folder, "smollm2", "--device", "xla", "--dtype", "float32", *size, env=env) as started:
        yield started


def complete(server: Server, prompt: str) -> Any:
    body = {"model": "smollm2", "prompt": prompt, "temperature": 0, "max_tokens": NUM_TOKENS, "ignore_eos": True}
    answer = server.post("/v1/completions", body, timeout=200)
    assert answer.status_code == 200, answer.text
    return answer.json()


def check(answer: Any, wanted: str) -> None:
    assert answer["usage"]["completion_tokens"] == NUM_TOKENS
    assert answer["choices"][0]["text"].startswith(wanted)


def kv(server: Server) -> Any:
    return server.get("/kv", timeout=60).json()


def test_the_text_is_certain_enough(wanted: dict[str, str]) -> None:
    assert sum(len(text) > 20 for text in wanted.values()) > 0.8 * len(wanted)


def test_a_prompt_in_chunks_and_its_prefix_found_again(server: Server, wanted: dict[str, str]) -> None:
    before = kv(server)
    check(complete(server, LONG), wanted[LONG])
    answer = complete(server, LONG + "Winston")
    check(answer, wanted[LONG + "Winston"])
    after = kv(server)
    assert answer["usage"]["prompt_tokens"] > 256, "more than a step takes"
    assert after["num_prefix_hits"] - before["num_prefix_hits"] > 256


@pytest.mark.parametrize("num", [1, 2, 8, 9, 32])
def test_batches(server: Server, wanted: dict[str, str], num: int) -> None:
    with ThreadPoolExecutor(num) as pool:
        for prompt, answer in zip(PROMPTS, pool.map(lambda p: complete(server, p), PROMPTS[:num]), strict=False):
            check(answer, wanted[prompt])


def test_preempted_sequences_go_on_as_they_would_have(server: Server, wanted: dict[str, str]) -> None:
    before = kv(server)
    with ThreadPoolExecutor(32) as pool:
        for prompt, answer in zip(PROMPTS, pool.map(lambda p: complete(server, p), PROMPTS), strict=True):
            check(answer, wanted[prompt])
    assert kv(server)["num_preemptions"] > before["num_preemptions"]


def test_nothing_was_compiled_meanwhile(server: Server) -> None:
    """The last test of a server: all before count."""
    complete(server, PROMPTS[0])
    found = kv(server)
    assert (found["num_compiles"], found["num_late_compiles"]) == (15, 0)
    counts = server.metrics()
    assert (counts["core:compiles_total"], counts["core:late_compiles_total"]) == (15, 0)
    assert counts["core:compile_seconds_total"] > 0.1
    assert "while requests wait" not in server.log.read_text()
