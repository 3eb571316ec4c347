"""`GET /kv` and `core kv`; and the flags that make an engine tell of itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from processes import Server, run_core, run_here


def test_route(null_server: Server) -> None:
    null_server.post("/v1/completions", {"model": "smollm2", "prompt": list(range(40)), "max_tokens": 20})
    held = null_server.get("/kv").json()
    [group] = held["groups"]
    assert group["num_pages"] == group["num_free"] + group["num_cached"] + group["num_used"]
    assert group["num_keys"] >= 3
    assert held["num_prefix_queries"] >= 39
    assert held["sequences"] == []


@pytest.mark.parametrize("asked", ["-1", "1001", "x", ""])
def test_wrong_numbers(null_server: Server, asked: str) -> None:
    answer = null_server.get(f"/kv?sequences={asked}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "sequences"
    assert "1000" in answer.json()["error"]["message"]


def test_command(null_server: Server) -> None:
    done = run_core("kv", "--url", f"{null_server.base_url}/", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    held = json.loads(done.stdout)
    assert held["groups"] == null_server.get("/kv").json()["groups"]
    shown = run_here("kv", "--url", null_server.base_url).stdout
    for words in ("KV groups, pages of 16 tokens", str(held["groups"][0]["num_pages"]), "found in the cache"):
        assert words in shown


def test_command_with_a_key(guarded_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "401" in run_here("kv", "--url", guarded_server.base_url).stderr
    assert run_here("kv", "--url", guarded_server.base_url, "--api-key", "second").returncode == 0
    monkeypatch.setenv("CORE_API_KEY", "third")
    assert run_here("kv", "--url", guarded_server.base_url).returncode == 0


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense", "http://127.0.0.1:99999"])
def test_no_server(url: str) -> None:
    done = run_here("kv", "--url", url)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith(f"error: {url}/kv")
    assert "--url" in line


def test_not_a_core_server(null_server: Server) -> None:
    done = run_here("kv", "--url", f"{null_server.base_url}/v1")
    assert done.returncode == 2
    assert "answers 404" in done.stderr


def test_flags(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    args = ("--device", "null", "--profile", str(trace), "--kv-events", f"ipc://{tmp_path}/events")
    assert run_here("generate", *args, "--raw", "-p", "one two", "--max-tokens", "5").returncode == 0
    assert [event["name"] for event in json.loads(trace.read_text())].count("launch") == 5
    args = ("--device", "null", "--profile", str(trace), "--num-prompts", "2", "--input-len", "8", "--output-len", "4")
    assert run_here("bench", "throughput", *args).returncode == 0
    assert [event["name"] for event in json.loads(trace.read_text())].count("launch") == 2 * 4
