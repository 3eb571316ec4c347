"""AIPerf's profile of streamed chats: no errors, its metrics are there, and it reads the server's own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server.processes import Server

pytestmark = pytest.mark.heavy

NUM_REQUESTS, NUM_TOKENS = 8, 12


def test_profile(open_server: Server, model_folder: Path, run_client: Callable[..., str], tmp_path: Path) -> None:
    run_client(
        *("aiperf", "profile", "--url", open_server.base_url, "--model", "smollm2", "--endpoint-type", "chat"),
        *("--streaming", "--tokenizer", str(model_folder), "--extra-inputs", "ignore_eos:true"),
        *("--request-count", str(NUM_REQUESTS), "--concurrency", "2", "--num-dataset-entries", str(NUM_REQUESTS)),
        *("--isl", "40", "--osl", str(NUM_TOKENS), "--workers-max", "2", "--record-processors", "1"),
        *("--ui", "none", "--no-gpu-telemetry", "--artifact-dir", str(tmp_path)),
        HF_HUB_OFFLINE="",  # else it looks for the folder in the hub's cache
        TRANSFORMERS_OFFLINE="",
    )
    profile: dict[str, Any] = json.loads((tmp_path / "profile_export_aiperf.json").read_text())
    assert (profile["error_summary"], profile["was_cancelled"]) == ([], False)
    assert (profile["request_count"]["avg"], profile["request_error_rate"]["avg"]) == (NUM_REQUESTS, 0)
    assert profile["usage_completion_tokens"]["avg"] == NUM_TOKENS
    assert profile["total_usage_completion_tokens"]["avg"] == NUM_REQUESTS * NUM_TOKENS
    for name in ("time_to_first_token", "request_latency", "output_token_throughput"):
        assert profile[name]["avg"] > 0, name
    # Tokens that a busy client reads at once have no time between them; and no more passes than until the answer's end.
    rest_ms = profile["request_latency"]["avg"] - profile["time_to_first_token"]["avg"]
    assert 0 <= profile["inter_token_latency"]["avg"] * (NUM_TOKENS - 1) <= 1.01 * rest_ms
    told = json.loads((tmp_path / "server_metrics_export.json").read_text())
    assert told["summary"]["endpoints_successful"] == [f"{open_server.base_url}/metrics"]
    [series] = told["metrics"]["vllm:generation_tokens"]["series"]
    assert series["stats"]["total"] == NUM_REQUESTS * NUM_TOKENS
