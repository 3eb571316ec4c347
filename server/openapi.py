"""GET /openapi.json: what this server takes and gives, route by route, as OpenAPI 3.1.

Made from the models that check bodies and from the structs that answers are, so that it does not differ from them;
`server.operations` says which route takes and gives which. The limits in it are those of the model that is served: its
names, its vocabulary, its context. A route that `server.operations` does not know is a defect: the server does not
start. Refuses nothing by itself, and leaves out which fields go together: the 400 that says so tells it better.
"""

from importlib.metadata import version
from typing import Any

import msgspec
from fastapi import FastAPI, Response
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema

from core.engine.front import ReadyInfo
from core.request import MAX_STRINGS, RANGES
from server.door import OPEN
from server.errors import MESSAGES, json_response
from server.operations import ERRORS, OPERATIONS, MessageError, Operation
from server.responses import ErrorBody, encode
from server.served import Served

Schema = dict[str, Any]

_REF = "#/components/schemas/"


def add_openapi(app: FastAPI, served: Served, info: ReadyInfo, has_keys: bool) -> None:
    """Add the route, after all others. `has_keys`: clients need an API key."""
    document = b""

    @app.get("/openapi.json")
    async def openapi() -> Response:
        return json_response(document)

    document = encode(_describe(app, served, info, has_keys))


def _describe(app: FastAPI, served: Served, info: ReadyInfo, has_keys: bool) -> Schema:
    routes = [
        (method, route.path_format)
        for route in app.routes
        if isinstance(route, APIRoute)
        for method in sorted(route.methods or ())
    ]
    operations = [OPERATIONS[route] for route in routes]
    asked, bodies = _bodies(operations)
    for schema in bodies.values():
        _limit(schema.get("properties", {}), served, info)
    shown, answers = _answers(operations)
    paths: dict[str, Schema] = {}
    for (method, path), operation in zip(routes, operations, strict=True):
        paths.setdefault(path, {})[method.lower()] = _operation(path, operation, asked, shown, has_keys)
    paths["/v1/models/{name}"]["get"]["parameters"][0]["schema"]["enum"] = list(served.names)
    document: Schema = {
        "openapi": "3.1.0",
        "info": {"title": "core", "version": version("core")},
        "paths": paths,
        "components": {"schemas": {**bodies, **answers}},
    }
    if has_keys:
        bearer = {"type": "http", "scheme": "bearer"}
        header = {"type": "apiKey", "in": "header", "name": "X-Api-Key"}
        document["components"]["securitySchemes"] = {"bearer": bearer, "header": header}
    return document


def _operation(
    path: str, operation: Operation, asked: dict[Any, Schema], shown: dict[Any, Schema], has_keys: bool
) -> Schema:
    is_guarded = has_keys and path not in OPEN
    name = path.partition("{")[2].partition("}")[0]
    described: Schema = {"summary": operation.about, "responses": {"200": _success(operation, shown)}}
    parameters: list[Schema] = [{"name": key, "in": "query", "schema": schema} for key, schema in operation.query]
    if name:
        parameters.append({"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}})
    if parameters:
        described["parameters"] = parameters
    if operation.takes:
        schemas = [asked[kind] for kind in operation.takes]
        body = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        described["requestBody"] = {"required": True, "content": _content(body)}
    error = shown[MessageError if path.startswith(MESSAGES) else ErrorBody]
    for status in sorted([*operation.errors, *([401] if is_guarded else [])]):
        described["responses"][str(status)] = {"description": ERRORS[status], "content": _content(error)}
    if is_guarded:
        described["security"] = [{"bearer": []}, {"header": []}]
    return described


def _success(operation: Operation, shown: dict[Any, Schema]) -> Schema:
    if isinstance(operation.gives, str):
        return {"description": operation.about, "content": _content({"type": "string"}, operation.gives)}
    schema = shown[operation.gives]
    if operation.choices is not None:
        choices = {"type": "array", "items": shown[operation.choices]}
        schema = {"allOf": [schema], "properties": {"choices": choices}}
    content = _content(schema)
    if operation.streams:
        content["text/event-stream"] = {}
    return {"description": operation.about, "content": content}


def _content(schema: Schema, media_type: str = "application/json") -> Schema:
    return {media_type: {"schema": schema}}


def _bodies(operations: list[Operation]) -> tuple[dict[Any, Schema], dict[str, Schema]]:
    """The schema of each body, by its model, and the components that they refer to."""
    kinds = list(dict.fromkeys(kind for operation in operations for kind in operation.takes))
    found, definitions = models_json_schema(
        [(kind, "validation") for kind in kinds], ref_template=_REF + "asked.{model}"
    )
    components = {f"asked.{name}": schema for name, schema in definitions["$defs"].items()}
    return {kind: found[kind, "validation"] for kind in kinds}, components


def _answers(operations: list[Operation]) -> tuple[dict[Any, Schema], dict[str, Schema]]:
    """The same of answers."""
    given = [kind for each in operations for kind in (each.gives, each.choices) if kind and not isinstance(kind, str)]
    kinds = list(dict.fromkeys([*given, ErrorBody, MessageError]))
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF + "shown.{name}")
    return dict(zip(kinds, schemas, strict=True)), {f"shown.{name}": each for name, each in components.items()}


def _limit(properties: Schema, served: Served, info: ReadyInfo) -> None:
    """Put what this model takes into the properties of a body."""
    limits = _limits(info)
    for name, schema in properties.items():
        _put(schema, limits.get(name, {}))
    if {"prompt", "max_tokens"} <= properties.keys():
        # A completion may have none where it echoes its prompt.
        _put(properties["max_tokens"], {"integer": {"minimum": 0}})
    if "model" in properties:
        _put(properties["model"], {"string": {"enum": list(served.names)}})


def _put(schema: Schema, limits: dict[str, Schema]) -> None:
    """Add keywords to all parts of a schema that are of their type."""
    schema |= limits.get(schema.get("type", ""), {})
    for inner in [*schema.get("anyOf", []), *([schema["items"]] if "items" in schema else [])]:
        _put(inner, limits)


def _limits(info: ReadyInfo) -> dict[str, dict[str, Schema]]:
    """The name of a field -> type -> keywords."""
    numbers: dict[str, Schema] = {
        name: {"minimum": low, **({} if high == float("inf") else {"maximum": high})}
        for name, (low, high) in RANGES.items()
    }
    numbers["top_p"] = {"exclusiveMinimum": 0, "maximum": 1}
    numbers["top_k"] = {"minimum": -1, "maximum": info.vocab_size}
    numbers["top_logprobs"] = numbers["logprobs"]
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        numbers[name] = {"minimum": 1, "maximum": info.max_model_len}
    numbers["min_tokens"] = {"minimum": 0, "maximum": info.max_model_len}
    numbers["truncate_prompt_tokens"] = {"minimum": -1, "not": {"enum": [0]}, "maximum": info.max_model_len}
    for name in ("stop_token_ids", "allowed_token_ids", "tokens", "prompt", "input"):
        numbers[name] = {"minimum": 0, "maximum": info.vocab_size - 1}
    numbers["priority"] = {"minimum": -(2**63), "maximum": 2**63 - 1}
    texts: dict[str, Schema] = {"string": {"minLength": 1}, "array": {"maxItems": MAX_STRINGS}}
    limits = {name: {"integer": keywords, "number": keywords} for name, keywords in numbers.items()}
    limits |= {name: {**limits.get(name, {}), "array": {"minItems": 1}} for name in ("messages", "input")}
    return limits | dict.fromkeys(("stop", "stop_sequences", "bad_words"), texts)
