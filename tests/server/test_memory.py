"""What a served smollm2 takes of memory: at start, with a long prompt, and with several streams at once.

Resident memory is asserted, which is no less than the proportional share (PSS): libraries that other processes of
this machine use too would make that look smaller.
"""

import math
import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from processes import Server, serve

ENGINE_MB, API_MB = 350, 150
SAMPLE_S = 0.02


class Peaks:
    """Greatest resident memory and PSS, in bytes, of each process of a server, by phase."""

    def __init__(self) -> None:
        self.phase = "start"
        self.seen: dict[tuple[str, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
        self._before = {process.pid for process in psutil.Process().children(recursive=True)}
        self._stop = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        thread = threading.Thread(target=self._watch)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            for process in psutil.Process().children(recursive=True):
                if process.pid not in self._before:
                    self._look_at(process)

    def _look_at(self, process: psutil.Process) -> None:
        try:
            name = "engine" if "core.engine.process" in process.cmdline() else "api"
            info = process.memory_full_info()
        except psutil.Error:  # it has just ended
            return
        seen = self.seen[self.phase, name]
        self.seen[self.phase, name] = (max(seen[0], info.rss), max(seen[1], info.pss))


def complete(server: Server, num_prompt: int, num_tokens: int) -> None:
    """One greedy completion of a prompt that no other is like."""
    prompt = [random.randrange(100, 40000) for _ in range(num_prompt)]
    body = {"model": "smollm2", "prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True, "temperature": 0}
    response = httpx.post(f"{server.base_url}/v1/completions", json=body, timeout=250)
    assert response.json()["usage"]["completion_tokens"] == num_tokens


def kv_bytes(server: Server, config: dict[str, Any]) -> int:
    """KV that is certainly resident: of pages in the prefix cache. Pages nobody has written take no memory."""
    held = server.get("/kv").json()
    head_size = config["hidden_size"] // config["num_attention_heads"]
    token_bytes = 2 * 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * head_size
    return sum(group["num_cached"] for group in held["groups"]) * held["page_tokens"] * token_bytes


@pytest.mark.heavy
def test_peak_of_engine_and_api(tmp_path: Path, smollm2: Any) -> None:
    weights = 2 * sum(math.prod(smollm2.shape(name)) for name in smollm2.names())  # the head is the embedding
    peaks, kv = Peaks(), {"start": 0}
    with peaks.watching(), serve(tmp_path, "smollm2", "--device", "cpu", "--dtype", "bfloat16") as server:
        peaks.phase = "long prompt"
        complete(server, 6000, 2)
        kv[peaks.phase] = kv_bytes(server, smollm2.config)
        peaks.phase = "8 streams"
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: complete(server, 200, 16), range(8)))
        kv[peaks.phase] = kv_bytes(server, smollm2.config)
    for phase, kv_held in kv.items():
        engine, api = (peaks.seen[phase, name] for name in ("engine", "api"))
        over, api_mb = (engine[0] - weights - kv_held) / 1e6, api[0] / 1e6
        pss = [seen[1] / 1e6 for seen in (engine, api)]
        print(f"{phase}: engine {over:.0f} MB over weights and KV (PSS {pss[0]:.0f} in all)")  # noqa: T201
        print(f"{phase}: api {api_mb:.0f} MB (PSS {pss[1]:.0f})")  # noqa: T201
        assert 0 < over <= ENGINE_MB, phase
        assert 0 < api_mb <= API_MB, phase
