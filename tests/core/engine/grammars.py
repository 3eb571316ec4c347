"""Forms to ask for, how to draw what a grammar allows, and how to tell whether a text has a form: by jsonschema and re,
which know nothing of llguidance."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import numpy as np

from core.engine.grammar import Matcher, fill_masks
from core.request import Structured

EOS = 2
VOCAB = 397  # wider than the tokenizer, and no multiple of 32

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["cat", "dog", "größer", 7, None]},
        "home": {
            "type": "object",
            "properties": {"zip": {"type": "string", "pattern": "^[0-9]{3}$"}, "old": {"type": "boolean"}},
            "required": ["zip"],
            "additionalProperties": False,
        },
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "kind", "home", "tags"],
    "additionalProperties": False,
}
PLACES: dict[str, Any] = {
    "type": "array",
    "items": {"anyOf": [{"$ref": "#/$defs/point"}, {"type": "null"}]},
    "minItems": 1,
    "maxItems": 2,
    "$defs": {
        "point": {
            "type": "object",
            "properties": {axis: {"type": "integer", "minimum": -9, "maximum": 9} for axis in "xy"},
            "required": ["x", "y"],
            "additionalProperties": False,
        }
    },
}
CHOICES = ["the quick", "the quick brown", 'né "x"\n\\', "👍🏽"]
REGEX = r"(ab|the lazy dog){2,4}-[0-9]{3}"
TAGS = {
    "structures": [{"begin": "<add>", "schema": PLACES["$defs"]["point"], "end": "</add>"}],
    "triggers": ["<add"],
}


def is_json_of(schema: dict[str, Any]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        jsonschema.validate(json.loads(text), schema)
        return True

    return check


FORMS: dict[str, tuple[Structured, Callable[[str], Any]]] = {
    "person": (Structured("json_schema", json.dumps(PERSON)), is_json_of(PERSON)),
    "places": (Structured("json_schema", json.dumps(PLACES)), is_json_of(PLACES)),
    "regex": (Structured("regex", REGEX), re.compile(REGEX).fullmatch),
    "choice": (Structured("choice", json.dumps(CHOICES)), CHOICES.__contains__),
    "lark": (Structured("grammar", 'start: "yes" | "no" N\nN: /[0-9]{2,3}/'), re.compile("yes|no[0-9]{2,3}").fullmatch),
    "gbnf": (Structured("grammar", 'root ::= "yes" | "no" [0-9]'), re.compile("yes|no[0-9]").fullmatch),
}  # fmt: skip


def allowed(matcher: Matcher) -> list[int]:
    words = np.frombuffer(fill_masks([(matcher, [])], VOCAB), np.uint8)
    assert len(words) == -(-VOCAB // 32) * 4
    return np.flatnonzero(np.unpackbits(words, bitorder="little")).tolist()


def walk(matcher: Matcher, rng: random.Random, weigh=lambda i: 1.0, ends: tuple[int, ...] = (EOS,)) -> list[int]:
    """Draw until the output ends."""
    ids: list[int] = []
    while not matcher.is_done:
        choices = allowed(matcher)
        assert matcher.fault is None
        assert bool(set(choices) & set(ends)) == matcher.is_complete
        drawn = rng.choices(choices, [weigh(i) for i in choices])[0]
        if drawn in ends:
            break
        assert matcher.accept([drawn]) == 1
        ids.append(drawn)
        assert len(ids) < 2000
    return ids
