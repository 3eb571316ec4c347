"""Matchers by themselves: random walks along masks end in texts of the form asked for, whatever is drawn."""

from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from core.engine.grammar import fill_masks
from core.engine.guidance import MAX_WHITESPACE, GuidanceCompiler
from core.errors import RequestError
from core.model.tokenizer import Tokenizer
from core.request import Structured
from tests.core.engine.grammars import EOS, FORMS, TAGS, VOCAB, allowed, walk


@pytest.mark.parametrize("name", FORMS)
def test_every_walk_ends_in_the_form(compiler: GuidanceCompiler, tokenizer: Tokenizer, name: str) -> None:
    form, check = FORMS[name]
    for seed in range(15):
        ids = walk(compiler.compile(form, [EOS]), random.Random(seed))
        text = tokenizer.decode(ids)
        assert check(text), text
        assert not set(ids) & tokenizer.special_ids


def test_any_object_is_an_object(compiler: GuidanceCompiler, tokenizer: Tokenizer) -> None:
    closing = {i for i in range(VOCAB) if set(tokenizer.token_bytes(i)) & set(b'}]"')}
    for seed in range(10):
        ids = walk(
            compiler.compile(Structured("json_object"), [EOS]),
            random.Random(seed),
            lambda i: 30.0 if i in closing else 1.0,
        )
        assert isinstance(json.loads(tokenizer.decode(ids)), dict)


def test_true_is_a_schema(compiler: GuidanceCompiler, tokenizer: Tokenizer) -> None:
    for text in ("true", " true\n", "{}"):
        matcher = compiler.compile(Structured("json_schema", text), [EOS])
        ids = tokenizer.encode('{"a": [1, "x"]}', add_special_tokens=False)
        assert matcher.accept(ids) == len(ids)
        assert matcher.is_complete


def test_whitespace_is_bounded(compiler: GuidanceCompiler, tokenizer: Tokenizer) -> None:
    """A model that likes whitespace e^20 times better than anything else: the outputs stay valid, and short."""
    blank = {i for i in range(VOCAB) if tokenizer.token_bytes(i) and not tokenizer.token_bytes(i).strip()}
    form, check = FORMS["places"]
    longest = 0
    for seed in range(10):
        matcher = compiler.compile(form, [EOS])
        text = tokenizer.decode(walk(matcher, random.Random(seed), lambda i: 5e8 if i in blank else 1.0))
        assert check(text)
        longest = max(longest, *map(len, re.findall(r"\s+", text)))
    assert longest == MAX_WHITESPACE


def test_structural_tags(compiler: GuidanceCompiler, tokenizer: Tokenizer) -> None:
    """Text is free; what starts like a structure is one."""
    matcher = compiler.compile(Structured("structural_tag", json.dumps(TAGS)), [EOS])
    for text, is_complete in [("any text ", True), ("<add", False), (">", False), ('{"x": 1, "y": 2}', False)]:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert matcher.accept(ids) == len(ids), text
        assert matcher.is_complete is is_complete
    assert matcher.accept(tokenizer.encode("no", add_special_tokens=False)) == 0
    ids = tokenizer.encode("</add> and more", add_special_tokens=False)
    assert matcher.accept(ids) == len(ids)
    assert matcher.is_complete


@pytest.mark.parametrize("name", FORMS)
def test_rollback_goes_back_exactly(compiler: GuidanceCompiler, name: str) -> None:
    form, _ = FORMS[name]
    rng = random.Random(5)
    for seed in range(3):
        ids = walk(compiler.compile(form, [EOS]), random.Random(seed))
        matcher = compiler.compile(form, [EOS])
        masks = []
        for i in ids:
            masks.append(allowed(matcher))
            assert matcher.accept([i]) == 1
        at = len(ids)
        for _ in range(8):
            target = rng.randrange(at + 1)
            matcher.rollback(at - target)
            if target < len(ids):
                assert allowed(matcher) == masks[target]
            at = min(len(ids), target + rng.randrange(4))
            assert matcher.accept(ids[target:at]) == at - target
        assert matcher.fault is None


def test_accept_stops_at_the_first_wrong_id(compiler: GuidanceCompiler, tokenizer: Tokenizer) -> None:
    matcher = compiler.compile(Structured("regex", "abc+"), [EOS])
    a, b, c = (tokenizer.token_to_id(letter) for letter in "abc")
    assert matcher.accept([a, b, a, c]) == 2
    assert (matcher.fault, matcher.is_complete) == (None, False)
    assert matcher.accept([c]) == 1
    assert (matcher.is_complete, matcher.is_done) == (True, False)


def test_ids_that_end_come_when_complete_and_only_the_requests_own(
    compiler: GuidanceCompiler, tokenizer: Tokenizer
) -> None:
    a, b = (tokenizer.token_to_id(letter) for letter in "ab")
    for stops, ends in [([EOS], {EOS}), ([], set()), ([b, 5], {b, 5}), ([EOS, 31, 32], {EOS, 31, 32})]:
        matcher = compiler.compile(Structured("regex", "a+b?"), stops)
        assert set(allowed(matcher)) & {EOS, *stops} == set()
        assert matcher.accept([a]) == 1
        assert set(allowed(matcher)) & {EOS, 5, 31, 32} == ends - {b}
        assert (b in allowed(matcher)) is True, "as a letter, or as an end"


def test_nothing_left_but_stop_ids_is_a_fault(compiler: GuidanceCompiler, tokenizer: Tokenizer) -> None:
    a, b = (tokenizer.token_to_id(letter) for letter in "ab")
    matcher = compiler.compile(Structured("regex", "a(b|c)"), [b])
    matcher.accept([a])
    assert allowed(matcher) == [tokenizer.token_to_id("c")]
    matcher = compiler.compile(Structured("regex", "aab"), [b])
    matcher.accept([a, a])
    assert len(allowed(matcher)) > VOCAB - 1
    assert "stop_token_ids" in (matcher.fault or "")


def test_a_dead_end_is_a_fault(compiler: GuidanceCompiler, tokenizer: Tokenizer) -> None:
    """llguidance sees some grammars that allow nothing only when it comes there."""
    matcher = compiler.compile(Structured("grammar", 'start: "a" X\nX: /b/ & /c/'), [EOS])
    assert matcher.accept([tokenizer.token_to_id("a")]) == 1
    assert len(allowed(matcher)) > VOCAB - 1
    assert "cannot go on" in (matcher.fault or "")
    assert not matcher.is_done


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("json_schema", '{"type": "nonsense"}', "Invalid type"),
        ("json_schema", '{"not": {"type": "string"}}', "not"),
        ("json_schema", '{"type": "array", "uniqueItems": true}', "uniqueItems"),
        ("json_schema", '{"not": {}, "x-guidance": {"lenient": true}}', "not"),
        ("json_schema", '{"oneOf": [{"type": "string"}, {}], "x-guidance": {"coerce_one_of": true}}', "oneOf"),
        ("json_schema", '{"type": "integer", "minimum": 5, "maximum": 4}', "minimum"),
        ("json_schema", '{"$ref": "http://127.0.0.1:1/schema"}', "registry"),
        ("json_schema", '{"type": "string", "format": "no such thing"}', "Unknown format"),
        ("json_schema", "false", "object schema"),
        ("json_schema", "[1]", "cannot be enforced"),
        ("regex", "(?=a)b", "look-around"),
        ("regex", "a(", "unclosed"),
        ("regex", r"[^\s\S]", "cannot go on"),
        ("choice", '[""]', "empty output"),
        ("grammar", "start: foo", "unknown name"),
        ("grammar", "root ::= missing", "cannot be enforced"),
        ("structural_tag", '{"structures": [{"begin": "<f>", "schema": {}, "end": ""}], "triggers": ["g"]}', "none of"),
        ("structural_tag", '{"structures": [], "triggers": []}', "empty"),
        ("structural_tag", "[]", "TypeError"),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_refused(compiler: GuidanceCompiler, kind: str, text: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        compiler.compile(Structured(kind, text), [EOS])
    assert caught.value.param == "structured"
    assert len(str(caught.value)) < 500


def test_the_text_of_a_special_token_is_spelled_out(compiler: GuidanceCompiler, tokenizer: Tokenizer) -> None:
    ids = walk(compiler.compile(Structured("regex", r"<\|im_start\|>x"), [EOS]), random.Random(1))
    assert not set(ids) & tokenizer.special_ids
    assert tokenizer.decode(ids) == "<|im_start|>x"


@pytest.fixture(scope="module")
def spacing() -> Tokenizer:
    """A tokenizer that puts a space before what it encodes, and knows few bytes."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    corpus = ["hello world", "the quick brown fox", '{"x": 123}', "0456789"]
    backend.train_from_iterator(
        corpus, trainers.BpeTrainer(vocab_size=90, special_tokens=["<s>", "</s>"], show_progress=False)
    )
    return Tokenizer(backend)


def test_forced_text_has_no_space_of_the_tokenizer(spacing: Tokenizer) -> None:
    compiler = GuidanceCompiler(spacing, spacing.vocab_size, [1])
    assert spacing.encode("hello", False) != [], "puts a space before"
    for pattern in ("hello world", " hello", "the (quick|fox) [0-9]{3}"):
        for seed in range(5):
            matcher = compiler.compile(Structured("regex", pattern), [1])
            ids, rng = [], random.Random(seed)
            while not matcher.is_done:
                words = np.frombuffer(fill_masks([(matcher, [])], spacing.vocab_size), np.uint8)
                drawn = rng.choice(np.flatnonzero(np.unpackbits(words, bitorder="little")).tolist())
                assert matcher.accept([drawn]) == 1
                ids.append(drawn)
            assert re.fullmatch(pattern, b"".join(map(spacing.token_bytes, ids)).decode())


def test_forced_text_without_tokens_is_refused(spacing: Tokenizer) -> None:
    compiler = GuidanceCompiler(spacing, spacing.vocab_size, [1])
    with pytest.raises(RequestError, match="cannot be enforced"):
        compiler.compile(Structured("regex", "größer"), [1])
