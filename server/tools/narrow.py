"""The schema of a function's arguments, narrowed so that what is generated for it comes to an end.

Models make up properties that nobody named, and digits, without end. So objects that say nothing of further properties
have none, and numbers without limits get some. What is valid by the narrowed schema is valid by the schema as it was.
"""

from typing import Any

MAX_INTEGER = 2**53 - 1
"""Beyond it, integers are not exact in every JSON reader. Source: RFC 7493, section 2.2."""

MAX_NUMBER = 10**15
DECIMALS = 1e-9

_MORE_PROPERTIES = {"additionalProperties", "patternProperties", "unevaluatedProperties", "anyOf", "oneOf", "$ref"}


def narrowed(schema: dict[str, Any]) -> dict[str, Any]:
    """See the top of this file. A schema with allOf stays as it is: its parts would narrow each other."""
    return schema if _holds(schema, "allOf") else _narrowed(schema)


def _narrowed(schema: dict[str, Any]) -> dict[str, Any]:
    narrow = {**schema, **_limits(schema)}
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            narrow[name] = _narrowed(schema[name])
    for name in ("properties", "$defs", "definitions"):
        if isinstance(schema.get(name), dict):
            narrow[name] = {key: _inner(inner) for key, inner in schema[name].items()}
    if "properties" not in schema:
        for name in ("anyOf", "oneOf"):
            if isinstance(schema.get(name), list):
                narrow[name] = [_inner(inner) for inner in schema[name]]
    elif not _MORE_PROPERTIES & schema.keys():
        narrow["additionalProperties"] = False
    return narrow


def _inner(schema: Any) -> Any:
    return _narrowed(schema) if isinstance(schema, dict) else schema


def _limits(schema: dict[str, Any]) -> dict[str, Any]:
    """Limits for numbers, where there are none."""
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if (
        not {"integer", "number"} & {kind for kind in kinds if isinstance(kind, str)}
        or {"enum", "const"} & schema.keys()
    ):
        return {}
    most = MAX_NUMBER if "number" in kinds else MAX_INTEGER
    limits: dict[str, Any] = {}
    if not {"minimum", "exclusiveMinimum"} & schema.keys():
        limits["minimum"] = -most
    if not {"maximum", "exclusiveMaximum"} & schema.keys():
        limits["maximum"] = most
    if "number" in kinds and "multipleOf" not in schema:
        limits["multipleOf"] = DECIMALS
    return limits


def _holds(schema: Any, word: str) -> bool:
    """Whether a keyword stands anywhere in a schema."""
    if isinstance(schema, dict):
        return word in schema or any(_holds(inner, word) for inner in schema.values())
    return isinstance(schema, list) and any(_holds(inner, word) for inner in schema)
