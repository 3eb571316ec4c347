"""Grammars of calls, and forms behind free text: random walks along their masks end in what they promise."""

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
from core.request import Prelude, Structured
from tests.core.engine.grammars import EOS, FORMS, PLACES, VOCAB, allowed, walk

POINT = PLACES["$defs"]["point"]
FUNCTIONS = [
    {"name": "go", "schema": POINT},
    {"name": "go_on", "schema": {"type": "object", "properties": {}, "additionalProperties": False}},
]
MARKED = {
    "open": "<call>", "begins": ["\n"], "head": '{"name": "', "middle": '", "arguments": ', "close": "}",
    "separator": None, "end": "\n</call>", "functions": FUNCTIONS, "form": None,
}  # fmt: skip
LISTED = MARKED | {"open": "<list>", "begins": [" [", "["], "separator": ", ", "end": "]"}
SPECIAL = LISTED | {"open": "<|im_start|>"}  # a special token of this tokenizer
BARE = MARKED | {"open": "", "begins": [""], "separator": "; ", "end": ""}
SPECS = {"marked": MARKED, "listed": LISTED, "special": SPECIAL, "bare": BARE}
CALL = r'\{"name": "(go|go_on)", "arguments": (\{[^{}]*\})\}'


def form(name: str, **more: Any) -> Structured:
    return Structured("calls", json.dumps(SPECS[name] | more))


def calls_in(text: str) -> int:
    """Number of calls, after seeing that each is of its schema."""
    found = re.findall(CALL, text, re.DOTALL)
    for function, arguments in found:
        schema: Any = next(each["schema"] for each in FUNCTIONS if each["name"] == function)
        jsonschema.validate(json.loads(arguments), schema)
    return len(found)


def outline(name: str, parallel: bool) -> str:
    spec: Any = SPECS[name]
    begin = "|".join(map(re.escape, spec["begins"]))
    opened, end = re.escape(spec["open"]), re.escape(spec["end"])
    if name == "marked":
        one = f"{opened}{begin}{CALL}{end}"
        return f"{one}(\n{one})*" if parallel else one
    more = f"({re.escape(spec['separator'])}{CALL})*" if parallel else ""
    return f"{opened}({begin}){CALL}{more}{end}"


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("name", SPECS)
def test_required(compiler: GuidanceCompiler, tokenizer: Tokenizer, name: str, parallel: bool) -> None:
    numbers = set()
    for seed in range(12):
        matcher = compiler.compile(form(name, required=True, parallel=parallel), [EOS])
        text = tokenizer.decode(walk(matcher, random.Random(seed)), skip_special_tokens=False)
        assert re.fullmatch(outline(name, parallel), text, re.DOTALL), text
        numbers.add(calls_in(text))
    assert numbers == {1} if not parallel else max(numbers) > 1


def accepts(compiler: GuidanceCompiler, tokenizer: Tokenizer, asked: Structured, text: str) -> bool:
    matcher = compiler.compile(asked, [EOS])
    ids = tokenizer.encode(text, add_special_tokens=False)
    return matcher.accept(ids) == len(ids) and matcher.is_complete


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("name", SPECS)
def test_not_required(compiler: GuidanceCompiler, tokenizer: Tokenizer, name: str, parallel: bool) -> None:
    spec: Any = SPECS[name]
    asked = form(name, required=False, parallel=parallel)
    good, bad = ('{"name": "go", "arguments": {"x": 1, "y": 2}}', '{"name": "go", "arguments": {"x": 1}}')

    def written(*calls: str) -> str:
        if spec["separator"] is None:
            return "\n".join(spec["open"] + spec["begins"][0] + call + spec["end"] for call in calls)
        return spec["open"] + spec["begins"][0] + spec["separator"].join(calls) + spec["end"]

    before = "Well {" if spec["open"] else ""
    expected = {"Well {": True, before + written(good): True, written(bad): False, written(good, bad): False}
    expected[written(good, good)] = parallel
    expected['\n{ "name" : "go"'] = bool(spec["open"])
    assert {text: accepts(compiler, tokenizer, asked, text) for text in expected} == expected


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("name", ["marked", "listed", "special"])
def test_a_form_or_calls(compiler: GuidanceCompiler, tokenizer: Tokenizer, name: str, parallel: bool) -> None:
    """Every walk is one or the other, with nothing around it."""
    found, check = set(), FORMS["places"][1]
    for seed in range(16):
        asked = form(name, required=False, parallel=parallel, form={"kind": "json_schema", "text": json.dumps(PLACES)})
        matcher = compiler.compile(asked, [EOS])
        text = tokenizer.decode(walk(matcher, random.Random(seed)), skip_special_tokens=False)
        is_call = re.fullmatch(outline(name, parallel), text, re.DOTALL) is not None
        assert calls_in(text) if is_call else check(text), text
        found.add(is_call)
    assert found == {True, False}


def test_a_form_beside_calls_is_refused_as_itself(compiler: GuidanceCompiler) -> None:
    asked = form("marked", required=False, parallel=True, form={"kind": "regex", "text": "("})
    with pytest.raises(RequestError, match="structured regex cannot be enforced"):
        compiler.compile(asked, [EOS])


@pytest.mark.parametrize("name", FORMS)
def test_a_form_after_free_text(compiler: GuidanceCompiler, tokenizer: Tokenizer, name: str) -> None:
    """However the free text ends: its mark is followed by the gap and the form, and by nothing else."""
    inner, check = FORMS[name]
    closing = {i for i in range(VOCAB) if b">" in tokenizer.token_bytes(i)}
    asked = Structured(inner.kind, inner.text, Prelude("<a>", ">", "\n"))
    for seed in range(5):
        ids = walk(compiler.compile(asked, [EOS]), random.Random(seed), lambda i: 30.0 if i in closing else 1.0)
        found = re.fullmatch(r"<a>[^>]*>\n(.*)", tokenizer.decode(ids), re.DOTALL)
        assert found
        assert check(found[1])


@pytest.mark.parametrize("begin", ["", "<a>"])
@pytest.mark.parametrize("most", [0, 1, 30])
def test_free_text_of_so_many_ids(compiler: GuidanceCompiler, tokenizer: Tokenizer, begin: str, most: int) -> None:
    """Whatever is drawn, its end comes, and the form after it; a character is finished before."""
    inner, check = FORMS["person"]
    asked = Structured(inner.kind, inner.text, Prelude(begin, "</t>", "\n", most))
    spelled = len(tokenizer.encode("</t>", add_special_tokens=False))
    for seed in range(8):
        ids = walk(compiler.compile(asked, [EOS]), random.Random(seed))
        found = re.fullmatch(rf"{begin}(.*?)</t>\n(\{{.*)", tokenizer.decode(ids), re.DOTALL)
        assert found
        assert check(found[2])
        after = next(n for n in range(len(ids)) if len(tokenizer.decode(ids[:n])) >= len(begin))
        ended = next(n for n in range(len(ids)) if "</t>" in tokenizer.decode(ids[:n]))
        assert most <= ended - after - spelled <= most + 3
        assert "�" not in found[1]


def test_going_back_before_a_forced_end(compiler: GuidanceCompiler, tokenizer: Tokenizer) -> None:
    asked = Structured("regex", "b+", Prelude("", "</t>", "", 3))
    ids = tokenizer.encode("aaa</t>", add_special_tokens=False)
    matcher, masks = compiler.compile(asked, [EOS]), []
    for i in ids:
        masks.append(allowed(matcher))
        assert matcher.accept([i]) == 1
    assert [len(mask) for mask in masks[3:]] == [1] * (len(ids) - 3)
    rng = random.Random(2)
    at = len(ids)
    for _ in range(20):
        target = rng.randrange(at + 1)
        matcher.rollback(at - target)
        if target < len(ids):
            assert allowed(matcher) == masks[target]
        at = min(len(ids), target + rng.randrange(5))
        assert matcher.accept(ids[target:at]) == at - target


def test_tags_after_free_text(compiler: GuidanceCompiler, tokenizer: Tokenizer) -> None:
    tags = {"structures": [{"begin": "<add>", "schema": POINT, "end": "</add>"}], "triggers": ["<add"]}
    asked = Structured("structural_tag", json.dumps(tags), Prelude("", "</t>"))
    for text, expected in (
        ('<add no</t>b <add>{"x": 1, "y": 2}</add> c', True),
        ("<add no", False),
        ("</t><add no", False),
    ):
        assert accepts(compiler, tokenizer, asked, text) == expected


def test_an_end_there_must_be(compiler: GuidanceCompiler) -> None:
    with pytest.raises(RequestError, match="with one"):
        Structured("regex", "a", Prelude("<a>", "")).check()


def test_what_cannot_be_enforced(compiler: GuidanceCompiler) -> None:
    functions = [{"name": "f", "schema": {"type": "wizard"}}]
    with pytest.raises(RequestError, match="calls cannot be enforced"):
        compiler.compile(
            Structured("calls", json.dumps(MARKED | {"functions": functions, "required": True, "parallel": True})),
            [EOS],
        )
    with pytest.raises(RequestError, match="KeyError"):
        compiler.compile(Structured("calls", json.dumps(MARKED)), [EOS])
