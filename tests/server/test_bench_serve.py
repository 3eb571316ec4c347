"""`core bench serve` against a real server: what it reports is what the server counted. And the traces it reads."""

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from processes import Server, run_core, run_here

from core.errors import ConfigError
from server.load.asks import at_random, from_trace
from server.load.report import is_good, parse_bounds, percentile, summary
from server.load.target import Outcome
from server.load.words import words

SAMPLE = Path(__file__).parent / "trace_sample.jsonl"
"""Twenty requests in Mooncake's format, made for this test."""


def bench(server: Server, *args: str) -> Any:
    done = run_here("bench", "serve", "--base-url", server.base_url, "--json", *args)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
def test_it_counts_what_the_server_counts(null_server: Server, backend: str) -> None:
    before = null_server.metrics()
    load = ("--num-prompts", "12", "--input-len", "40", "--output-len", "9", "--request-rate", "100")
    limits = ("--max-concurrency", "4", "--goodput", "ttft:60000", "--goodput", "tpot:0.0001")
    found = bench(null_server, "--backend", backend, "--ignore-eos", *load, *limits)
    after = null_server.metrics()
    gained = {name: after[name] - before[name] for name in after if name in before}
    assert (found["completed"], found["failed"], found["errors"]) == (12, 0, {})
    assert found["total_output_tokens"] == gained["generation_tokens_total"] == 12 * 9
    assert found["total_input_tokens"] == gained["prompt_tokens_total"] >= 12 * 38
    assert found["request_throughput"] == pytest.approx(12 / found["duration"])
    assert found["request_goodput"] == 0  # nobody keeps to the second bound
    assert 0 < found["median_ttft_ms"] <= found["p99_ttft_ms"] <= found["p99_e2el_ms"]
    server_ttft_s = gained["time_to_first_token_seconds_sum"] / 12
    assert found["mean_ttft_ms"] > server_ttft_s * 1000  # the way there and back comes on top


def test_a_shared_prefix_is_found(null_server: Server) -> None:
    found = bench(null_server, "--num-prompts", "4", "--input-len", "8", "--prefix-len", "160", "--output-len", "2",
                  "--max-concurrency", "1", "--seed", "5")  # fmt: skip
    assert found["total_cached_tokens"] >= 3 * 144


def test_replay(null_server: Server) -> None:
    """At twenty times the pace. What is too long for the server is left out, and its blocks are found again."""
    done = run_core("bench", "serve", "--base-url", null_server.base_url, "--trace", str(SAMPLE), "--trace-speed", "20",
                    "--max-model-len", "1900", "--ignore-eos")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "are longer than --max-model-len and left out" in done.stderr
    assert "ttft" in done.stdout
    asks, left_out = from_trace(SAMPLE, None, 1.0, 1900)
    assert len(asks) + left_out == 20
    assert left_out > 0


def test_errors_are_counted_and_told(null_server: Server) -> None:
    args = ("--model", "gpt-9", "--num-prompts", "2", "--base-url", null_server.base_url, "--json")
    done = run_here("bench", "serve", *args)
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert (found["completed"], found["failed"]) == (0, 2)
    [error] = found["errors"]
    assert "404" in error
    assert "gpt-9" in error


@pytest.mark.parametrize(
    ("args", "words_of_error"),
    [
        (("--base-url", "http://127.0.0.1:1"), ["--base-url"]),
        (("--request-rate", "0"), ["--request-rate", "0"]),
        (("--goodput", "speed:9"), ["speed:9", "ttft:200"]),
        (("--trace", "nowhere.jsonl"), ["nowhere.jsonl"]),
        (("--trace", str(SAMPLE), "--request-rate", "5"), ["--request-rate"]),
        (("--trace-speed", "2"), ["--trace"]),
        (("--metric-percentiles", "p99"), ["p99"]),
    ],
)
def test_refusals(args: tuple[str, ...], words_of_error: list[str]) -> None:
    done = run_here("bench", "serve", *args)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    for word in words_of_error:
        assert word in line


def test_mooncake() -> None:
    """Equal blocks are equal text, and the lengths are those asked for."""
    asks, left_out = from_trace(SAMPLE, 10, 2.0, None)
    assert (len(asks), left_out) == (10, 0)
    lines = [json.loads(line) for line in SAMPLE.read_text().splitlines()]
    for ask, line in zip(asks, lines, strict=False):
        assert ask.at_s == pytest.approx(line["timestamp"] / 2000)
        assert len(ask.prompt().split()) == ask.num_in == line["input_length"]
    first, second = [ask for ask in asks if ask.num_in > 600][:2]
    assert first.prompt().split()[:512] == second.prompt().split()[:512]
    assert first.prompt() != second.prompt()


def test_azure(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    rows = [
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:15:46.6805900,374,44",
        "2023-11-16 18:15:50.9951690,396,109",
    ]
    path.write_text("\n".join(rows))
    (first, second), _ = from_trace(path, None, 1.0, None)
    assert (first.at_s, first.num_in, first.num_out) == (0.0, 374, 44)
    assert second.at_s == pytest.approx(4.314579, abs=1e-5)
    assert first.prompt().split()[:50] != second.prompt().split()[:50]


def test_sessions_of_agents(tmp_path: Path) -> None:
    """Gzipped; a sub-agent's times count from its own start; blocks mean something within a session alone."""
    inner = {"t": 2.0, "k": "subagent", "requests": [{"t": 1.5, "in": 70, "out": 3, "runs": [[1, 1], [9, 1]]}]}
    requests = [{"t": 0.0, "in": 130, "out": 5, "runs": [[1, 2]]}, inner]
    path = tmp_path / "sessions.jsonl.gz"
    with gzip.open(path, "wt") as out:
        for name in ("a", "b"):
            out.write(json.dumps({"id": name, "block_size": 64, "requests": requests}) + "\n")
    asks, _ = from_trace(path, None, 1.0, None)
    assert [ask.at_s for ask in asks] == [0.0, 0.0, 3.5, 3.5]
    mine, other, sub, _ = asks
    assert mine.prompt().split()[:64] == sub.prompt().split()[:64]
    assert mine.prompt().split()[:64] != other.prompt().split()[:64]
    assert [len(ask.prompt().split()) for ask in asks] == [130, 130, 70, 70]


def test_what_is_no_trace(tmp_path: Path) -> None:
    for name, text in (("x.jsonl", "{}\n"), ("x.csv", "a,b\n1,2\n"), ("x.jsonl.gz", "plain"), ("y.jsonl", "[1]\n")):
        (tmp_path / name).write_text(text)
        with pytest.raises(ConfigError, match=r"no trace"):
            from_trace(tmp_path / name, None, 1.0, None)
    with pytest.raises(ConfigError, match="raise --max-model-len"):
        from_trace(SAMPLE, None, 1.0, 1)


def test_arrivals() -> None:
    asks = at_random(4000, 10, 5, rate=50.0, burstiness=1.0, seed=1)
    gaps = [b.at_s - a.at_s for a, b in itertools.pairwise(asks)]
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(0.02, rel=0.1)
    assert spread == pytest.approx(mean, rel=0.1)  # a Poisson process
    assert {ask.at_s for ask in at_random(5, 1, 1, rate=None, burstiness=1.0, seed=1)} == {0.0}
    assert len({ask.prompt() for ask in asks[:100]}) == 100


def test_words_are_the_same_for_the_same_seed() -> None:
    assert words("x", 50) == words("x", 80)[: len(words("x", 50))]
    assert words("x", 50) != words("y", 50)


def test_percentiles_and_goodput() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.5
    assert percentile([1.0, 2.0, 3.0, 4.0], 100) == 4.0
    assert percentile([], 99) == 0.0
    bounds = parse_bounds(["ttft:200", "e2el:1000"])
    good = Outcome(first_s=0.2, total_s=1.0, gaps_s=[0.4, 0.4], num_in=7, num_out=3)
    late = Outcome(first_s=0.21, total_s=1.0, gaps_s=[0.79], num_in=7, num_out=2)
    failed = Outcome(error="HTTP 500")
    assert [is_good(outcome, bounds) for outcome in (good, late, failed)] == [True, False, False]
    found = summary([good, late, failed], 2.0, bounds, [99])
    assert (found["completed"], found["failed"], found["request_goodput"]) == (2, 1, 0.5)
    assert found["output_throughput"] == 2.5
    assert found["mean_tpot_ms"] == pytest.approx((400 + 790) / 2)
    assert found["mean_itl_ms"] == pytest.approx((400 + 400 + 790) / 3)
