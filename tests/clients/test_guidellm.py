"""GuideLLM before smollm2, on each endpoint that it knows: no request fails, and its counts are those of the server."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.server.processes import Server

pytestmark = pytest.mark.heavy

NUM_REQUESTS, NUM_TOKENS = 6, 12


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_benchmark(
    server: Server, model_folder: Path, run_client: Callable[..., str], tmp_path: Path, route: str
) -> None:
    report = tmp_path / "report.json"
    before = server.metrics()
    run_client(
        *("guidellm", "run", "--disable-console-interactive"),
        *("--backend", f"kind=openai_http,target={server.base_url},api_key={server.key},request_format={route}"),
        *("--profile", "kind=concurrent,streams=2", "--constraint", f"kind=max_requests,count={NUM_REQUESTS}"),
        *("--tokenizer", f"kind=huggingface_auto,model={model_folder}"),
        *("--data", f"kind=synthetic_text,prompt_tokens=40,output_tokens={NUM_TOKENS}"),
        *("--output", f"kind=json,path={report}"),
        HF_HUB_OFFLINE="1",
    )
    [benchmark] = json.loads(report.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert totals == {"successful": NUM_REQUESTS, "errored": 0, "incomplete": 0, "total": NUM_REQUESTS}
    sent = benchmark["requests"]["successful"]
    assert {request["output_tokens"] for request in sent} == {NUM_TOKENS}
    assert all(0 < request["time_to_first_token_ms"] <= 1000 * request["request_latency"] for request in sent)
    after = server.metrics()
    name = "prompt_tokens_total"
    assert sum(request["prompt_tokens"] for request in sent) == after[name] - before[name]
