"""/metrics, scraped through HTTP, beside what really happened. Each test has looked before and after."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from processes import Server, serve

ALL = (
    *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total"),
    *("prompt_tokens_total", "generation_tokens_total", "prefix_cache_queries_total", "prefix_cache_hits_total"),
    *(
        f"{name}_{part}"
        for name in (
            *("time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds"),
            *("e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds"),
            *("request_decode_time_seconds", "request_inference_time_seconds", "request_prompt_tokens"),
            *("request_generation_tokens", "request_max_num_generation_tokens", "request_params_n"),
            *("request_params_max_tokens", "iteration_tokens_total"),
        )
        for part in ("count", "sum", 'bucket{le="+Inf"}')
    ),
    *("cpu_cache_usage_perc", "num_requests_swapped"),
    *(f"core:{name}_total" for name in ("compiles", "compile_seconds", "late_compiles")),
    *(
        f"core:{name}_total"
        for name in ("preemptions_swapped", "swaps_refused", "pages_swapped_out", "pages_swapped_in")
    ),
    *(f'request_success_total{{finished_reason="{reason}"}}' for reason in ("stop", "length", "abort", "error")),
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With pages for two sequences of the full length, so that a third one is preempted; and with the former names."""
    size = ("--num-kv-blocks", "33", "--max-model-len", "256", "--max-num-seqs", "4", "--swap-space", "0.001")
    with serve(tmp_path_factory.mktemp("small"), "--device", "null", *size, "--old-metric-names") as server:
        yield server


class Change:
    """What the metrics of a server gained since this was made."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._before = server.metrics()

    def of(self, name: str) -> float:
        return self._server.metrics()[name] - self._before[name]

    def ended(self, reason: str) -> float:
        return self.of(f'request_success_total{{finished_reason="{reason}"}}')


def test_every_name_is_there_with_its_labels(small: Server) -> None:
    found = small.metrics()
    assert not set(ALL) - found.keys()
    text = small.get("/metrics").text
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert all('engine="0"' in line and 'model_name="smollm2"' in line for line in samples)
    [config] = [line for line in samples if line.startswith("vllm:cache_config_info{")]
    assert 'block_size="16"' in config
    assert 'num_gpu_blocks="33"' in config


def test_drafts(tmp_path: Path) -> None:
    """On a device that counts, in a prompt that has counted before, every draft is right."""
    with serve(tmp_path, "--device", "null", "--num-kv-blocks", "33", "--speculative", "ngram:4") as server:
        body = {"model": "smollm2", "prompt": [*range(100, 150), 99, 100], "max_tokens": 21, "temperature": 0}
        assert server.post("/v1/completions", body).json()["usage"]["completion_tokens"] == 21
        found = server.metrics()
    per_position = [f'spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}}' for place in range(4)]
    counts = [found[name] for name in per_position]
    assert counts[0] == found["spec_decode_num_drafts_total"] > 0
    assert sum(counts) == found["spec_decode_num_draft_tokens_total"] == found["spec_decode_num_accepted_tokens_total"]


def test_tokens_and_requests(small: Server) -> None:
    change = Change(small)
    body = {"model": "smollm2", "prompt": [[100, 101, 102], [200, 201]], "n": 2, "max_tokens": 7, "ignore_eos": True}
    usage = small.post("/v1/completions", body).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (5, 28)
    assert change.of("prompt_tokens_total") == 10  # each of the choices reads its prompt
    assert change.of("generation_tokens_total") == 28
    assert change.ended("length") == 4
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds"):
        assert change.of(f"{name}_count") == 4
    assert change.of("inter_token_latency_seconds_count") == 24
    assert change.of("request_generation_tokens_sum") == 28
    assert change.of("request_max_num_generation_tokens_sum") == 7
    assert (change.of("request_params_n_count"), change.of("request_params_n_sum")) == (1, 2)
    assert change.of("request_params_max_tokens_sum") == 7
    assert change.of("iteration_tokens_total_sum") == 10 + 24  # the last token of each is not fed back


def test_times_add_up(small: Server) -> None:
    change, start_s = Change(small), time.monotonic()
    small.post("/v1/completions", {"model": "smollm2", "prompt": [9], "max_tokens": 200, "ignore_eos": True})
    took_s = time.monotonic() - start_s
    whole, decode, queue, prefill, first, between = (
        change.of(f"{name}_seconds_sum")
        for name in (
            *("e2e_request_latency", "request_decode_time", "request_queue_time", "request_prefill_time"),
            *("time_to_first_token", "inter_token_latency"),
        )
    )
    assert 0 < whole < took_s
    assert min(queue, prefill) > 0
    assert queue + prefill == pytest.approx(first)
    assert first + decode == pytest.approx(whole)
    assert between == pytest.approx(decode)
    assert change.of("request_time_per_output_token_seconds_sum") == pytest.approx(decode / 199)


def test_prefix_hits_are_those_that_usage_shows(small: Server) -> None:
    change, cached = Change(small), 0
    for _ in range(3):
        body = {"model": "smollm2", "prompt": list(range(300, 350)), "max_tokens": 1}
        cached += small.post("/v1/completions", body).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert change.of("prefix_cache_hits_total") == cached == 2 * 48
    assert change.of("prefix_cache_queries_total") == 3 * 49


def test_a_stop_string_is_a_stop(small: Server) -> None:
    change = Change(small)
    body = {"model": "smollm2", "prompt": [5000], "max_tokens": 100, "temperature": 0}
    text = small.post("/v1/completions", body).json()["choices"][0]["text"]
    for stream in (False, True):
        small.post("/v1/completions", body | {"stop": text[20:30], "stream": stream})
    assert (change.ended("stop"), change.ended("length"), change.ended("abort")) == (2, 1, 0)


def test_aborts(small: Server) -> None:
    """A client that hangs up: its request is counted as aborted, and the gauges fall back to nothing."""
    change = Change(small)
    body = {"model": "smollm2", "prompt": [7], "max_tokens": 250, "ignore_eos": True, "stream": True, "n": 20}
    with small.client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        seen = small.metrics()
        assert seen["num_requests_running"] + seen["num_requests_waiting"] > 0
        assert seen["kv_cache_usage_perc"] > 0
    deadline_s = time.monotonic() + 2
    while small.metrics()["num_requests_running"] or small.metrics()["num_requests_waiting"]:
        assert time.monotonic() < deadline_s
    assert change.ended("abort") > 0
    assert change.ended("abort") + change.ended("length") == 20
    assert small.metrics()["kv_cache_usage_perc"] == 0


def test_preemptions(small: Server) -> None:
    change, before = Change(small), small.get("/kv").json()["num_preemptions"]
    bodies = [
        {"model": "smollm2", "prompt": [1000 * i] * 100, "max_tokens": 150, "ignore_eos": True} for i in range(1, 5)
    ]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda body: small.post("/v1/completions", body), bodies))
    assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [150] * 4
    happened = small.get("/kv").json()["num_preemptions"] - before
    assert change.of("num_preemptions_total") == happened > 0
    swapped, refused = change.of("core:preemptions_swapped_total"), change.of("core:swaps_refused_total")
    assert swapped + refused == happened
    assert change.of("core:pages_swapped_out_total") >= change.of("core:pages_swapped_in_total") > 0
    assert change.of("generation_tokens_total") == 600


def test_former_names(small: Server, null_server: Server) -> None:
    found = small.metrics()
    assert found["gpu_cache_usage_perc"] == found["kv_cache_usage_perc"]
    assert found["gpu_prefix_cache_hits_total"] == found["prefix_cache_hits_total"]
    assert found["time_per_output_token_seconds_count"] == found["inter_token_latency_seconds_count"] > 0
    assert "gpu_cache_usage_perc" not in null_server.metrics()


def test_what_the_engine_counts_is_left_out_while_it_is_stuck(small: Server) -> None:
    """Not told as it was before: nobody knows."""
    engine = small.engine()
    engine.suspend()
    try:
        while small.get("/health").status_code == 200:
            time.sleep(0.05)
        found = small.metrics()
    finally:
        engine.resume()
    assert "num_requests_running" not in found
    assert found["generation_tokens_total"] > 0
    assert "num_requests_running" in small.metrics()


def test_openmetrics_where_asked_for(null_server: Server) -> None:
    answer = null_server.get("/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")
    assert null_server.get("/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")
