"""Who may come in: keys, origins, sizes. And what is written down of it."""

import gzip
import json

import httpx
import pytest
from processes import Server

BODY = {"model": "smollm2", "prompt": [5000], "max_tokens": 1}
KEYS = ("first key", "second", "third")


@pytest.mark.parametrize("path", ["/health", "/live", "/"])
def test_open_paths(guarded_server: Server, path: str) -> None:
    assert guarded_server.get(path, headers={}).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", path) for path in ("/ping", "/version", "/v1/models", "/metrics", "/kv", "/plan")),
        *(("GET", path) for path in ("/nowhere", "/health/", "//", "/LIVE")),
        *(("POST", path) for path in ("/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/tokenize")),
        ("OPTIONS", "/v1/models"),
    ],
)
@pytest.mark.parametrize("key", [None, "wrong", "first", "first keyx"])
def test_everything_else_needs_a_key(guarded_server: Server, method: str, path: str, key: str | None) -> None:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    answer = httpx.request(method, f"{guarded_server.base_url}{path}", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    ("method", "path", "key", "status", "kind"),
    [
        ("POST", "/v1/messages", "wrong", 401, "authentication_error"),
        ("POST", "/v1/messages/count_tokens", None, 401, "authentication_error"),
        ("GET", "/v1/messages", "first key", 405, "invalid_request_error"),
        ("POST", "/v1/messages/batches", "first key", 404, "not_found_error"),
    ],
)
def test_errors_of_the_messages_api(
    guarded_server: Server, method: str, path: str, key: str | None, status: int, kind: str
) -> None:
    """In the shape that Anthropic's clients know, whoever refuses."""
    headers = {} if key is None else {"X-Api-Key": key}
    answer = httpx.request(method, f"{guarded_server.base_url}{path}", headers=headers)
    assert answer.status_code == status
    assert answer.json().keys() == {"type", "error"}
    assert answer.json()["error"]["type"] == kind


def test_a_message_that_is_too_long(guarded_server: Server) -> None:
    answer = guarded_server.post("/v1/messages", {"model": "x" * 20_000})
    assert answer.status_code == 413
    assert answer.json()["error"]["type"] == "request_too_large"


@pytest.mark.parametrize("key", KEYS)
def test_keys(guarded_server: Server, key: str) -> None:
    for headers in ({"Authorization": f"Bearer {key}"}, {"authorization": f"bearer {key}"}, {"X-Api-Key": key}):
        assert guarded_server.get("/v1/models", headers=headers).status_code == 200
    assert guarded_server.get("/v1/models", headers={"Authorization": f"Basic {key}"}).status_code == 401


def test_the_official_client(guarded_server: Server) -> None:
    assert guarded_server.openai.models.list().data[0].id == "smollm2"


def test_bodies_that_are_too_long(guarded_server: Server) -> None:
    """Refused by what is announced, or by what comes where nothing is."""
    long = json.dumps(BODY | {"prompt": "x" * 20_000}).encode()
    for content in (long, iter([long[:9000], long[9000:18000], long[18000:]])):
        url = f"{guarded_server.base_url}/v1/completions"
        answer = httpx.post(url, content=content, headers=guarded_server.headers)
        assert answer.status_code == 413
        message = answer.json()["error"]["message"]
        assert "20000" in message
        assert "--max-body-bytes" in message
    assert guarded_server.post("/v1/completions", BODY).status_code == 200


def test_compressed_bodies(guarded_server: Server) -> None:
    body = gzip.compress(json.dumps(BODY).encode())
    headers = {**guarded_server.headers, "Content-Encoding": "gzip"}
    answer = httpx.post(f"{guarded_server.base_url}/v1/completions", content=body, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("Content-Encoding is 'gzip': ")


def preflight(server: Server, origin: str) -> httpx.Response:
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    return httpx.options(f"{server.base_url}/v1/completions", headers=headers)


def test_pages_of_a_named_origin_may_call(guarded_server: Server) -> None:
    """The browser asks first, and has no key then."""
    allowed = preflight(guarded_server, "https://page.example")
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == "https://page.example"
    headers = guarded_server.headers | {"Origin": "https://page.example"}
    answer = guarded_server.post("/v1/completions", BODY, headers=headers)
    assert answer.headers["access-control-allow-origin"] == "https://page.example"
    assert "access-control-allow-credentials" not in answer.headers


def test_pages_of_other_origins_may_not(guarded_server: Server, null_server: Server) -> None:
    assert preflight(guarded_server, "https://elsewhere.example").status_code == 400
    assert preflight(null_server, "https://page.example").status_code == 405


def test_the_log_has_a_line_for_each_request(guarded_server: Server) -> None:
    """With its id and what it cost, and never with what was said."""
    secret = "a word that nobody says"
    headers = guarded_server.headers | {"X-Request-Id": "mine-42"}
    guarded_server.post("/v1/completions", BODY | {"prompt": secret, "max_tokens": 3}, headers=headers)
    guarded_server.post("/v1/completions", BODY, headers={"X-Request-Id": "mine-43"})
    lines = [json.loads(line) for line in guarded_server.log.read_text().splitlines()]
    entries = {line["request_id"]: line for line in lines if line.get("event") == "request"}
    done, refused = entries["mine-42"], entries["mine-43"]
    assert (done["method"], done["path"], done["status"]) == ("POST", "/v1/completions", 200)
    assert (done["prompt_tokens"], done["output_tokens"], done["finish_reasons"]) == (5, [3], ["length"])
    assert 0 < done["duration_s"] < 10
    assert (refused["status"], refused["output_tokens"]) == (401, [])
    [plan] = [line for line in lines if line.get("event") == "plan"]
    assert ["max_num_seqs", "1", "asked for"] in plan["plan"]
    for word in (secret, *KEYS):
        assert word not in guarded_server.log.read_text()
