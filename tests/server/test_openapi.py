"""GET /openapi.json: every route, with the bodies that are taken and the answers that come.

The heavy tests try out what it says; here is what they take for granted."""

import json
from typing import Any

import httpx
import jsonschema
import pytest
import referencing
import referencing.jsonschema
from processes import Server

ROUTES = {
    "/": "get", "/health": "get", "/ping": "get", "/live": "get", "/version": "get", "/plan": "get", "/kv": "get",
    "/metrics": "get", "/openapi.json": "get", "/v1/models": "get", "/v1/models/{name}": "get",
    "/v1/responses/{response_id}": "get", "/v1/responses": "post", "/v1/responses/{response_id}/cancel": "post",
    "/v1/chat/completions": "post", "/v1/completions": "post", "/v1/embeddings": "post", "/v1/messages": "post",
    "/v1/messages/count_tokens": "post", "/tokenize": "post", "/v1/tokenize": "post", "/detokenize": "post",
    "/v1/detokenize": "post",
}  # fmt: skip

CHAT = {"model": "smollm2", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
TEXT = {"model": "other-name", "prompt": "Hi", "max_tokens": 4}
CALL = {"id": "c1", "function": {"name": "f", "arguments": "{}"}}
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", CHAT | {"max_tokens": 4.0, "logit_bias": {"5": 1}, "stop": "x", "best_of": 1, "n": None}),
    ("/v1/chat/completions", CHAT | {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                                                  {"role": "assistant", "tool_calls": [CALL]},
                                                  {"role": "tool", "tool_call_id": "c1", "content": "5"}]}),
    ("/v1/completions", TEXT),
    ("/v1/completions", TEXT | {"prompt": [[1, 2], [3.0]], "max_tokens": 0, "echo": True}),
    ("/v1/messages", CHAT | {"messages": [{"role": "assistant", "content": [{"type": "text", "text": "Hi"}]}]}),
    ("/v1/messages/count_tokens", {"model": "smollm2", "messages": CHAT["messages"], "system": "Be good."}),
    ("/v1/responses", {"model": "smollm2", "input": [{"type": "message", "role": "user", "content": "Hi"}]}),
    ("/tokenize", {"prompt": "Hi"}),
    ("/tokenize", {"messages": CHAT["messages"], "return_token_strs": True}),
    ("/detokenize", {"tokens": [5, 6.0]}),
]  # fmt: skip
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT | {"temperature": 101}),
    ("/v1/chat/completions", CHAT | {"top_p": 0}),
    ("/v1/chat/completions", CHAT | {"bootstrap_host": "2.2.2.2"}),
    ("/v1/chat/completions", CHAT | {"best_of": 2}),
    ("/v1/chat/completions", CHAT | {"messages": []}),
    ("/v1/chat/completions", CHAT | {"messages": [{"role": "user", "content": "Hi", "tool_calls": [CALL]}]}),
    ("/v1/chat/completions", CHAT | {"max_tokens": 4.5}),
    ("/v1/chat/completions", CHAT | {"stop_token_ids": [49152]}),
    ("/v1/completions", TEXT | {"prompt": []}),
    ("/v1/completions", TEXT | {"prompt": [49152]}),
    ("/v1/completions", TEXT | {"max_tokens": 5000}),
    ("/v1/messages", CHAT | {"tool_choice": {"type": "none"}, "top_k": -2}),
    ("/v1/responses", {"model": "smollm2", "input": [{"type": "message", "content": "Hi"}]}),
    ("/tokenize", {}),
    ("/detokenize", {"tokens": [-1]}),
]


@pytest.fixture(scope="module")
def document(null_server: Server) -> dict[str, Any]:
    return null_server.get("/openapi.json").json()


def validator(document: dict[str, Any], *path: str) -> Any:
    """Of the schema that stands there."""
    where = "/".join(part.replace("~", "~0").replace("/", "~1") for part in path)
    resource = referencing.Resource.from_contents(document, referencing.jsonschema.DRAFT202012)
    registry = referencing.Registry().with_resource("doc:", resource)
    return jsonschema.Draft202012Validator({"$ref": f"doc:#/{where}"}, registry=registry)


def body_of(document: dict[str, Any], path: str) -> Any:
    return validator(document, "paths", path, "post", "requestBody", "content", "application/json", "schema")


def test_every_route_is_in_it(document: dict[str, Any]) -> None:
    """The server does not start with a route that it knows nothing about; this list knows the others."""
    assert document["openapi"].startswith("3.1")
    assert {path: [*operations] for path, operations in document["paths"].items()} == {
        path: [method] for path, method in ROUTES.items()
    }
    for path, method in ROUTES.items():
        operation = document["paths"][path][method]
        assert ("requestBody" in operation) == (method == "post" and not path.endswith("/cancel"))
        assert "401" not in operation["responses"]
        assert "security" not in operation


def test_schemas_are_schemas_and_nothing_is_missing(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    named = {part.partition('"')[0] for part in json.dumps(document).split("#/components/schemas/")[1:]}
    assert named <= schemas.keys()
    assert "asked.ChatBody" in named


@pytest.mark.parametrize(("path", "body"), ASKED, ids=lambda value: str(value)[:60])
def test_what_it_allows_is_taken(null_server: Server, document: dict[str, Any], path: str, body: Any) -> None:
    body_of(document, path).validate(body)
    answer = null_server.post(path, body)
    assert answer.status_code == 200, answer.text
    shown = ("paths", path, "post", "responses", "200", "content", "application/json", "schema")
    validator(document, *shown).validate(answer.json())


@pytest.mark.parametrize(("path", "body"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_it_rules_out_is_refused(null_server: Server, document: dict[str, Any], path: str, body: Any) -> None:
    assert not body_of(document, path).is_valid(body)
    answer = null_server.post(path, body)
    assert answer.status_code == 400, answer.text
    shown = ("paths", path, "post", "responses", "400", "content", "application/json", "schema")
    validator(document, *shown).validate(answer.json())


def test_it_names_the_models(document: dict[str, Any]) -> None:
    assert document["components"]["schemas"]["asked.CompletionBody"]["properties"]["model"]["enum"] == [
        "smollm2",
        "other-name",
    ]
    parameter = document["paths"]["/v1/models/{name}"]["get"]["parameters"][0]
    assert parameter["schema"]["enum"] == ["smollm2", "other-name"]


def test_behind_keys(guarded_server: Server) -> None:
    assert httpx.get(f"{guarded_server.base_url}/openapi.json").status_code == 401
    document = guarded_server.get("/openapi.json").json()
    assert document["components"]["securitySchemes"].keys() == {"bearer", "header"}
    for path, method in ROUTES.items():
        operation = document["paths"][path][method]
        is_open = path in ("/", "/health", "/live")
        assert ("security" in operation) != is_open
        assert ("401" in operation["responses"]) != is_open
