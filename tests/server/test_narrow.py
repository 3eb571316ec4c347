"""Schemas of arguments, narrowed: objects have the properties that are named, and numbers have an end."""

from typing import Any

import pytest

from server.tools.asked import Function
from server.tools.narrow import DECIMALS, MAX_INTEGER, MAX_NUMBER

INNER = {"properties": {"b": {"type": "string"}}}
CLOSED = INNER | {"additionalProperties": False}


def schema_of(parameters: dict[str, Any] | None) -> dict[str, Any]:
    return Function.model_validate({"name": "f", "parameters": parameters}).arguments_schema


def test_no_parameters_are_no_arguments() -> None:
    for parameters in (None, {}):
        assert schema_of(parameters) == {"type": "object", "properties": {}, "additionalProperties": False}


def test_no_properties_but_those_that_are_named() -> None:
    """Everywhere in the schema."""
    properties = {"a": {"items": INNER}, "c": {"anyOf": [INNER, {"$ref": "#/$defs/d"}]}, "d": {"oneOf": [INNER, True]}}
    assert schema_of({"properties": properties, "$defs": {"d": INNER}}) == {
        "type": "object",
        "properties": {
            "a": {"items": CLOSED},
            "c": {"anyOf": [CLOSED, {"$ref": "#/$defs/d"}]},
            "d": {"oneOf": [CLOSED, True]},
        },
        "$defs": {"d": CLOSED},
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    "more",
    [
        {"additionalProperties": True},
        {"patternProperties": {"x": {}}},
        {"anyOf": [INNER]},
        {"allOf": [INNER]},
        {"$ref": "#"},
    ],
)
def test_where_more_may_be_named_it_stays_open(more: dict[str, Any]) -> None:
    assert schema_of(INNER | more) == {"type": "object", **INNER, **more}


def test_parts_of_all_of_are_not_narrowed() -> None:
    properties = {"a": INNER, "b": {"type": "integer"}}
    assert schema_of({"allOf": [{}], "properties": properties})["properties"] == properties


INTEGER = {"minimum": -MAX_INTEGER, "maximum": MAX_INTEGER}
NUMBER = {"minimum": -MAX_NUMBER, "maximum": MAX_NUMBER, "multipleOf": DECIMALS}


@pytest.mark.parametrize(
    ("schema", "limits"),
    [
        ({"type": "integer"}, INTEGER),
        ({"type": ["integer", "null"]}, INTEGER),
        ({"type": "number"}, NUMBER),
        ({"type": ["integer", "number"]}, NUMBER),
        ({"type": "integer", "minimum": 5}, {"maximum": MAX_INTEGER}),
        ({"type": "number", "exclusiveMaximum": 5}, {"minimum": -MAX_NUMBER, "multipleOf": DECIMALS}),
        ({"type": "integer", "exclusiveMinimum": 0, "maximum": 5}, {}),
        ({"type": "integer", "enum": [10**30]}, {}),
        ({"type": "string"}, {}),
        ({"type": [["integer"]]}, {}),
        ({}, {}),
    ],
)
def test_numbers_have_an_end(schema: dict[str, Any], limits: dict[str, Any]) -> None:
    assert schema_of({"properties": {"a": schema}})["properties"]["a"] == schema | limits
