"""What a served smollm2 takes of memory: at start, with a long prompt, and with several streams at once.

Asserted is the proportional share (PSS) as it would be with nothing else on the machine: resident memory, less half of
the file pages that engine and API process share. Other processes that map the same libraries make the real PSS smaller.
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

ENGINE_BYTES, API_BYTES = 350_000_000, 150_000_000
SAMPLE_S = 0.02


class Peaks:
    """Greatest resident memory of each process of a server, in bytes, by phase."""

    def __init__(self) -> None:
        self.phase = "start"
        self.seen: dict[tuple[str, str], int] = defaultdict(int)
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
            resident = process.memory_info().rss
        except psutil.Error:  # it has just ended
            return
        self.seen[self.phase, name] = max(self.seen[self.phase, name], resident)


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


def shared_bytes(server: Server) -> int:
    """File pages that may be resident in both processes."""
    engine, api = (
        {m.path: m.rss for m in process.memory_maps() if m.path.startswith("/")}
        for process in (server.engine(), psutil.Process(server.process.pid))
    )
    return sum(min(engine[path], api[path]) for path in engine.keys() & api.keys())


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
        half = shared_bytes(server) // 2
    for phase, kv_held in kv.items():
        engine, api = (peaks.seen[phase, name] - half for name in ("engine", "api"))
        over = engine - weights - kv_held
        print(f"{phase}: engine {engine / 1e6:.0f} MB, {over / 1e6:.0f} over weights and KV; api {api / 1e6:.0f} MB")  # noqa: T201
        assert 0 < over <= ENGINE_BYTES, phase
        assert 0 < api <= API_BYTES, phase
