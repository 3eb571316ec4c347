"""Structural tags: texts that are of a form made of parts are accepted, and no others; what is no part is refused."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema
import pytest

from core.engine.guidance import GuidanceCompiler
from core.errors import RequestError
from core.model.tokenizer import Tokenizer
from core.request import Structured
from tests.core.engine.grammars import EOS, PLACES, walk

POINT = PLACES["$defs"]["point"]
JSON_POINT = {"type": "json_schema", "json_schema": POINT}
A_POINT = '{"x": 1, "y": 2}'
ADD = {"type": "tag", "begin": "<add>", "content": JSON_POINT, "end": "</add>"}
SUB = {"begin": "<sub>", "content": {"type": "regex", "pattern": "[0-9]/[0-9]"}, "end": ["</sub>", "."]}
THINK = {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"}
ANY = {"type": "any_text"}
ADDED, SUBBED = f"<add>{A_POINT}</add>", "<sub>1/2</sub>"


def const(text: str) -> dict[str, Any]:
    return {"type": "const_string", "value": text}


def form(part: Any) -> Structured:
    return Structured("structural_tag", json.dumps({"format": part}))


def triggered(**more: bool) -> dict[str, Any]:
    return {"type": "triggered_tags", "triggers": ["<add", "<sub"], "tags": [ADD, SUB], **more}


def separated(**more: bool) -> dict[str, Any]:
    return {"type": "tags_with_separator", "tags": [ADD, SUB], "separator": "; ", **more}


def sequence(*parts: Any) -> dict[str, Any]:
    return {"type": "sequence", "elements": [*parts]}


# A part, texts that are of it, and texts that are not: cut short, too long, or wrong.
CASES: dict[str, tuple[Any, list[str], list[str]]] = {
    "const": (const('né "x"'), ['né "x"'], ["n", 'né "x" ']),
    "schema": (JSON_POINT, [A_POINT, '{ "x":1,"y" : 2}'], ['{"x": 1}', A_POINT + " a"]),
    "regex": (SUB["content"], ["1/2"], ["1/", "12"]),
    "grammar": ({"type": "grammar", "grammar": 'root ::= "yes" | "no" [0-9]'}, ["yes", "no1"], ["no", "y"]),
    "text": (ANY, ["a", "a <b> \n"], []),
    "sequence": (sequence(const("a"), JSON_POINT, const("b")), [f"a{A_POINT}b"], [f"a{A_POINT}", A_POINT, "ab"]),
    "or": ({"type": "or", "elements": [const("a"), sequence(const("b"), ANY)]}, ["a", "b", "bzz"], ["az", "c"]),
    "optional": (sequence({"type": "optional", "content": ADD}, const("!")), ["!", ADDED + "!"], [ADDED, ADDED * 2]),
    "star": (sequence({"type": "star", "content": ADD}, const("!")), ["!", ADDED * 3 + "!"], ["<add>!"]),
    "plus": ({"type": "plus", "content": ADD}, [ADDED, ADDED * 3], [ADDED + "<add>", "a"]),
    "tag": (SUB | {"type": "tag"}, ["<sub>1/2</sub>", "<sub>1/2."], ["<sub>1/2", "1/2."]),
    "no end": (sequence(const("a"), {"type": "tag", "begin": "b", "content": ANY, "end": ""}), ["ab", "abcd"], ["a"]),
    "free in a tag": (sequence(THINK, ADD), [f"<t>a < b</t>{ADDED}"], ["<t>a", f"<t></t> {ADDED}", ADDED]),
    "triggered": (triggered(), ["a", f"a {ADDED} b {SUBBED}c"], ["a <add", f"{ADDED} <sub>x"]),
    "triggered once": (triggered(stop_after_first=True), ["a", f"a {ADDED}"], [f"a {ADDED} b", ADDED + SUBBED]),
    "triggered at once": (triggered(at_least_one=True), [ADDED, f"{SUBBED} b {ADDED}"], ["a", f"a {ADDED}"]),
    "triggered just once": (triggered(at_least_one=True, stop_after_first=True), [ADDED], ["a", ADDED + "b"]),
    "triggered at the end": (sequence(THINK, triggered()), [f"<t>b</t>a {ADDED}"], ["a", f"<t>b {ADDED}"]),
    "separated": (separated(), [ADDED, f"{ADDED}; {SUBBED}; {ADDED}"], [f"{ADDED} {ADDED}", f"{ADDED}; ", "a"]),
    "separated once": (separated(stop_after_first=True, at_least_one=True), [ADDED], [f"{ADDED}; {SUBBED}"]),
    "separated or nothing": (sequence(separated(), const("!")), ["!", ADDED + "!"], [ADDED]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_of_a_form(compiler: GuidanceCompiler, tokenizer: Tokenizer, name: str) -> None:
    part, good, bad = CASES[name]
    for text, expected in [*((text, True) for text in good), *((text, False) for text in bad)]:
        matcher = compiler.compile(form(part), [EOS])
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert (matcher.accept(ids) == len(ids) and matcher.is_complete) is expected, text


def test_every_walk_is_of_the_form(compiler: GuidanceCompiler, tokenizer: Tokenizer) -> None:
    other = sequence(const("["), SUB | {"type": "tag"}, const("]"))
    part = sequence(THINK | {"end": "}"}, {"type": "or", "elements": [ADD, other]})
    closing = {i for i in range(tokenizer.vocab_size) if b"}" in tokenizer.token_bytes(i)}
    kinds = set()
    for seed in range(10):
        ids = walk(compiler.compile(form(part), [EOS]), random.Random(seed), lambda i: 30.0 if i in closing else 1.0)
        text = tokenizer.decode(ids)
        found = re.fullmatch(r"<t>[^}]*}(<add>(.*)</add>|\[<sub>\d/\d(</sub>|\.)\])", text, re.DOTALL)
        assert found, text
        kinds.add(bool(found[2]))
        if found[2]:
            jsonschema.validate(json.loads(found[2]), POINT)
    assert kinds == {True, False}


def test_special_tokens_are_tokens(compiler: GuidanceCompiler, tokenizer: Tokenizer) -> None:
    """Where a tag is written with one, its text is none."""
    part = {"type": "triggered_tags", "triggers": ["<|im_start|>"], "tags": [{**ADD, "begin": "<|im_start|>add"}]}
    ids = tokenizer.encode(f"a<|im_start|>add{A_POINT}</add>", add_special_tokens=False)
    assert set(ids) & tokenizer.special_ids
    matcher = compiler.compile(form(part), [EOS])
    assert matcher.accept(ids) == len(ids)
    assert matcher.is_complete


WRONG: list[tuple[Any, str]] = [
    ({"type": "token", "token": 5}, "type 'token' is not served"),
    ({"value": "a"}, "type None is not served"),
    ("a", "no part"),
    ({"type": "const_string"}, "value is missing"),
    ({"type": "const_string", "value": 5}, "must be a text"),
    ({"type": "any_text", "excludes": ["a"]}, "excludes is no field"),
    ({"type": "json_schema", "json_schema": POINT, "style": "qwen_xml"}, "style is no field"),
    ({"type": "json_schema", "json_schema": {"not": {}}}, "not"),
    ({"type": "json_schema", "json_schema": [1]}, "must be an object"),
    ({"type": "regex", "pattern": "(?=a)"}, "look-around"),
    ({"type": "grammar", "grammar": "root ::= missing"}, "missing"),
    (sequence(), "elements must be a list"),
    (sequence(ANY, const("a")), "any_text must stand right before the end"),
    (sequence(triggered(), const("a")), "triggered_tags must stand at the end"),
    ({**ADD, "end": []}, "end is"),
    ({**ADD, "end": ["a", ""]}, "end is"),
    ({**triggered(), "triggers": ["<mul"]}, "none of the triggers"),
    ({**triggered(), "tags": [{**ADD, "type": "or"}]}, "elements is missing"),
    (const(""), "nothing but an empty output"),
]


@pytest.mark.parametrize(("part", "reason"), WRONG)
def test_what_is_no_form(compiler: GuidanceCompiler, part: Any, reason: str) -> None:
    with pytest.raises(RequestError, match="structural_tag cannot be enforced") as caught:
        compiler.compile(form(part), [EOS])
    assert reason in str(caught.value)
