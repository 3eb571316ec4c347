"""The JSON-Schema test suite, through the code that `response_format` takes, beside bare llguidance.

A schema of the suite comes with instances that are valid or not. Each instance is written in several ways, without
spaces and with, and fed to the grammar. Nothing invalid may be accepted; and with llguidance's own defaults no more may
be compiled, or accepted of what is valid. Every schema counts, also those whose instances are all of one kind. Schemas
of older drafts say which they are of, as `$schema` does for clients: without it the newest is meant.

`make test-heavy` fetches the suite (see the Makefile).
"""

import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import llguidance
import numpy as np
import pytest

from core.engine.grammar import Matcher, fill_masks
from core.engine.guidance import GuidanceCompiler
from core.errors import RequestError
from core.model.tokenizer import Tokenizer, load_tokenizer
from server.form import FormFields
from server.strict import parse
from tests.conftest import write_tokenizer

SUITE = Path(sys.prefix) / "json-schema-suite" / "tests"
DRAFTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
VOCAB, EOS = 384, 2


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return load_tokenizer(folder)


class Ours:
    """As a request's schema is taken."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._compiler = GuidanceCompiler(tokenizer, VOCAB, [EOS])

    def accepted(self, schema: Any, texts: list[str]) -> list[bool] | None:
        """Which texts the schema's grammar accepts; None: the schema is refused."""
        try:
            return [self._accepts(self.matcher(schema), text) for text in texts]
        except RequestError as error:
            if "cannot be enforced" not in str(error):
                raise
            return None

    def matcher(self, schema: Any) -> Matcher:
        """Raises: RequestError for a schema that is refused."""
        asked = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
        form = parse(json.dumps(asked).encode(), FormFields).form
        assert form is not None
        form.structured.check()
        return self._compiler.compile(form.structured, [EOS])

    def _accepts(self, matcher: Matcher, text: str) -> bool:
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        return matcher.accept(ids) == len(ids) and matcher.is_complete


class Bare:
    """llguidance, with its own defaults."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._encode = tokenizer.encode
        self._wrapped = GuidanceCompiler(tokenizer, VOCAB, [EOS])._tokenizer

    def accepted(self, schema: Any, texts: list[str]) -> list[bool] | None:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
        matchers = [llguidance.LLMatcher(self._wrapped, grammar, log_level=0) for _ in texts]
        if matchers[0].is_error():
            return None
        return [self._accepts(matcher, text) for matcher, text in zip(matchers, texts, strict=True)]

    def _accepts(self, matcher: llguidance.LLMatcher, text: str) -> bool:
        ids = self._encode(text, add_special_tokens=False)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def cases(draft: str) -> Iterator[tuple[str, Any, list[tuple[str, bool]]]]:
    """(name, schema, texts of instances and whether they are valid) of each schema of a draft that is mandatory."""
    files = sorted((SUITE / draft).glob("*.json"))
    assert files, f"{SUITE} is missing: make test-heavy fetches it"
    for file in files:
        for group in json.loads(file.read_text()):
            schema = group["schema"]
            if isinstance(schema, dict):
                schema = {"$schema": DRAFTS[draft], **schema}
            texts = [(text, test["valid"]) for test in group["tests"] for text in written(test["data"])]
            yield f"{draft}/{file.stem}: {group['description']}", schema, texts


def written(value: Any) -> list[str]:
    compact = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return list(dict.fromkeys([compact, json.dumps(value, ensure_ascii=False), json.dumps(value)]))


@pytest.mark.heavy
def test_nothing_invalid_and_no_less_than_llguidance(tokenizer: Tokenizer) -> None:
    ours = Ours(tokenizer)
    bare = Bare(tokenizer)
    counts: dict[str, Counter[str]] = {draft: Counter() for draft in DRAFTS}
    invalid, refused, rejected = [], [], []
    for draft, count in counts.items():
        for name, schema, texts in cases(draft):
            mine, its = (each.accepted(schema, [text for text, _ in texts]) for each in (ours, bare))
            count.update(schemas=1, ours=mine is not None, bare=its is not None)
            if mine is None:
                refused += [name] if its is not None else []
                continue
            for number, (text, is_valid) in enumerate(texts):
                count.update(texts=1, ours_rejects=is_valid and not mine[number])
                if mine[number] and not is_valid:
                    invalid.append(f"{name}: {text}")
                if its is not None:
                    count.update(bare_rejects=is_valid and not its[number], bare_invalid=its[number] and not is_valid)
                    if is_valid and its[number] and not mine[number]:
                        rejected.append(f"{name}: {text}")
    for draft, count in counts.items():
        print(draft, dict(count))  # noqa: T201
    assert sum(count["schemas"] for count in counts.values()) >= 500
    assert not invalid, f"{len(invalid)} accepted that are not valid:\n" + "\n".join(invalid[:20])
    assert not refused, "refused, which llguidance compiles:\n" + "\n".join(refused)
    assert not rejected, "rejected, which llguidance takes:\n" + "\n".join(rejected[:20])


def drawn(matcher: Matcher, tokenizer: Tokenizer, rng: random.Random) -> str | None:
    """An output of the grammar, at random, with a liking for its end; None: it became long."""
    closing = {i for i in range(VOCAB) if set(tokenizer.token_bytes(i)) & set(b'}]"')}
    ids: list[int] = []
    while not matcher.is_done and not (matcher.is_complete and rng.random() < 0.4):
        words = np.frombuffer(fill_masks([(matcher, [])], VOCAB), np.uint8)
        choices = np.flatnonzero(np.unpackbits(words, bitorder="little")).tolist()
        if choices == [EOS]:
            break
        choices = [i for i in choices if i != EOS]
        ids += rng.choices(choices, [10 if i in closing else 1 for i in choices])
        assert matcher.accept(ids[-1:]) == 1
        if len(ids) > 60:
            return None
    return tokenizer.decode(ids)


@pytest.mark.heavy
def test_what_grammars_give_is_valid(tokenizer: Tokenizer) -> None:
    """By the judgement of jsonschema. It divides floats, so what is a multiple of 0.0001 is not asked."""
    ours, rng, num_outputs = Ours(tokenizer), random.Random(0), 0
    for draft in DRAFTS:
        for name, schema, _ in cases(draft):
            if ours.accepted(schema, ["0"]) is None or name.endswith("by small number"):
                continue
            kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
            validator = kind(schema, format_checker=kind.FORMAT_CHECKER)
            for _ in range(10):
                text = drawn(ours.matcher(schema), tokenizer, rng)
                if text is not None:
                    assert validator.is_valid(json.loads(text)), (name, text)
                    num_outputs += 1
    assert num_outputs > 7000
