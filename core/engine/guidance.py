"""llguidance behind the grammar seam.

Tokens stand for exactly the bytes that `core.model.tokenizer` makes text of, so what is checked is what is shown.
llguidance refuses what it cannot enforce; nothing here relaxes that, and a schema cannot ask for it either. It allows
any amount of whitespace between the parts of JSON, in which a model can lose itself: here the amount is bounded.

Source: https://github.com/guidance-ai/llguidance, docs/syntax.md and docs/json_schema.md.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import llguidance
import numpy as np

from core.engine.budget import BudgetMatcher
from core.engine.calls import calls_grammar
from core.engine.grammar import Matcher, Words
from core.engine.tags import tags_grammar
from core.errors import RequestError
from core.model.source import open_source
from core.plugin import loader
from core.request import Prelude, Structured

if TYPE_CHECKING:
    from core.model.tokenizer import Tokenizer

MAX_WHITESPACE = 8
_JSON_OPTIONS = {
    "whitespace_flexible": True,
    "whitespace_pattern": rf"[\x20\x0A\x0D\x09]{{1,{MAX_WHITESPACE}}}",
    "lenient": False,
    "coerce_one_of": False,
}
_CALL_OPTIONS = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "lenient": False,
    "coerce_one_of": False,
}
"""Arguments of calls are written as chat templates write JSON, which is what models were taught."""
_MAX_MESSAGE = 300
_COMPLETE = "the grammar cannot go on: it is complete, and no id ends this request"
_INCOMPLETE = "the grammar cannot go on: it is not complete, and only ids in stop_token_ids may follow"


def open_compiler(model: str, vocab_size: int) -> GuidanceCompiler:
    """For the tokenizer of a model, loaded anew. Raises: ConfigError when it has none."""
    specs = list(dict.fromkeys(loader.model_specs().values()))
    source = open_source(model, loader.weights_packages(), specs)
    return GuidanceCompiler(source.tokenizer(), vocab_size, source.eos_ids)


class GuidanceCompiler:
    """Grammars over the ids of one tokenizer.

    vocab_size   of the model: its logits may be wider than the tokenizer
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Sequence[int]) -> None:
        # llguidance must have an id that ends outputs. Which ids do, each matcher decides for itself.
        ends = [i for i in eos_ids if i < vocab_size] or [vocab_size - 1]
        self._vocabulary = _Vocabulary(tokenizer, vocab_size, ends[0])
        self._special = {tokenizer.id_to_token(i) or "": i for i in self._vocabulary.special_token_ids}
        self._ends = ends
        self._num_words = -(-vocab_size // 32)
        wrapped = llguidance.TokenizerWrapper(self._vocabulary)
        self._tokenizer = llguidance.LLTokenizer(wrapped, n_vocab=vocab_size, eos_token=ends)
        self._limits = llguidance.LLParserLimits(verbose_errors=False)

    def compile(self, structured: Structured, stop_ids: Sequence[int]) -> Matcher:
        """Raises: RequestError for what llguidance cannot enforce, and for what allows no output."""
        try:
            grammar = _after(structured.after, self._grammar(structured))
        except (ValueError, KeyError, TypeError, AssertionError) as error:
            raise _refused(structured, f"{type(error).__name__}: {error}") from error
        inner = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        if inner.is_error():
            raise _refused(structured, inner.get_error())
        # Some grammars that allow nothing are only seen to when asked what comes first, other than an end.
        first = GuidanceMatcher(inner, self._ends, [])
        first.fill(np.zeros(self._num_words, np.int32))
        if first.is_done or (first.fault and first.is_complete):
            raise _refused(structured, "it allows nothing but an empty output")
        if first.fault:
            raise _refused(structured, first.fault)
        matcher = GuidanceMatcher(inner, self._ends, stop_ids)
        after = structured.after
        if after is None or after.max_tokens is None:
            return matcher
        end_ids, token_bytes = self._vocabulary(after.end), self._vocabulary.tokens.__getitem__
        return BudgetMatcher(matcher, after.begin.encode(), after.end.encode(), end_ids, after.max_tokens, token_bytes)

    def _grammar(self, structured: Structured) -> str:
        kind, text = structured.kind, structured.text
        if kind == "json_object":
            text = '{"type": "object"}'
        if kind == "json_schema" and json.loads(text) is True:
            text = "{}"  # the same, and an object, which is what llguidance's options can be put into
        if kind in ("json_object", "json_schema"):
            return llguidance.LLMatcher.grammar_from_json_schema(text, overrides=_JSON_OPTIONS)  # type: ignore[arg-type]
        if kind == "structural_tag":
            return tags_grammar(json.loads(text), self._special, _JSON_OPTIONS)
        if kind == "calls":
            return self._calls(json.loads(text))
        return llguidance.grammar_from(kind, text)  # type: ignore[arg-type]  # regex, choice and grammar, as checked

    def _calls(self, spec: dict[str, Any]) -> str:
        grammar = calls_grammar(spec, self._special, _CALL_OPTIONS)
        if spec["form"] is None:
            return grammar
        form = Structured(**spec["form"])
        form.check()
        self.compile(form, [])  # by itself first, so that the error is its own
        return _around(grammar, "form", self._grammar(form))


def _after(prelude: Prelude | None, grammar: str) -> str:
    """The grammar of a form, behind what comes before it."""
    if prelude is None:
        return grammar
    begin, end, gap = (json.dumps(text) if text else "" for text in (prelude.begin, prelude.end, prelude.gap))
    return _around(f"start: {begin} free {gap} @answer\nfree[suffix={end}]: /(?s:.*)/", "answer", grammar)


def _around(outer: str, name: str, grammar: str) -> str:
    """`outer`, in which `grammar` is known by that name."""
    inner = json.loads(grammar)["grammars"] if grammar.startswith("{") else [{"lark_grammar": grammar}]
    inner[0]["name"] = name
    return json.dumps({"grammars": [{"lark_grammar": outer}, *inner]})


class GuidanceMatcher:
    """See `core.engine.grammar.Matcher`."""

    def __init__(self, inner: llguidance.LLMatcher, eos_ids: Iterable[int], stop_ids: Sequence[int]) -> None:
        self._inner = inner
        self._stop_bits = _bits(stop_ids)
        self._end_bits = _bits({*eos_ids, *stop_ids})
        self.fault: str | None = None

    @property
    def is_done(self) -> bool:
        return self._inner.is_stopped() and not self._inner.is_error()

    @property
    def is_complete(self) -> bool:
        return self._inner.is_accepting() and not self._inner.is_error()

    def fill(self, words: Words) -> None:
        if self.fault is None:
            self._inner.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
            if self._inner.is_error():
                self.fault = f"the grammar cannot go on: {_short(self._inner.get_error())}"
        if self.fault is None:
            self._set_ends(words.view(np.uint32))
            if not words.any():
                self.fault = _COMPLETE if self.is_complete else _INCOMPLETE
        if self.fault is not None:
            words[:] = -1

    def _set_ends(self, words: np.ndarray[Any, np.dtype[np.uint32]]) -> None:
        for word, bits in self._end_bits.items():
            words[word] &= ~bits
        if self._stop_bits and self._inner.is_accepting():
            for word, bits in self._stop_bits.items():
                words[word] |= bits

    def accept(self, ids: Sequence[int]) -> int:
        return self._inner.try_consume_tokens(list(ids))

    def rollback(self, num_ids: int) -> None:
        if not num_ids or self._inner.is_error():  # from too complex a grammar there is no way back
            return
        if not self._inner.rollback(num_ids):
            raise ValueError(f"a matcher cannot go back by {num_ids} ids: {self._inner.get_error()}")
        self.fault = None


class _Vocabulary:
    """A tokenizer as llguidance wants it."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_id: int) -> None:
        self.eos_token_id = eos_id
        self.bos_token_id = None
        self.tokens = [tokenizer.token_bytes(i) for i in range(vocab_size)]
        self.special_token_ids = sorted(i for i in tokenizer.special_ids if i < vocab_size)
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        """Ids of a text that the grammar forces. They stand for exactly this text, which `encode` does not promise:
        it may put a space before it, and takes special tokens for what they are."""
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        are_plain = all(i < len(self.tokens) and i not in self._tokenizer.special_ids for i in ids)
        if are_plain and b"".join(self.tokens[i] for i in ids) == text.encode():
            return ids
        return self._longest_first(text.encode())

    def _longest_first(self, rest: bytes) -> list[int]:
        ids = []
        while rest:
            size = next(n for n in range(min(self._longest, len(rest)), 0, -1) if rest[:n] in self._plain_ids)
            ids.append(self._plain_ids[rest[:size]])
            rest = rest[size:]
        return ids

    @cached_property
    def _plain_ids(self) -> dict[bytes, int]:
        special = self._tokenizer.special_ids
        return {token: i for i, token in enumerate(self.tokens) if token and i not in special}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._plain_ids))


def _bits(ids: Iterable[int]) -> dict[int, np.uint32]:
    """Words of a mask, and in each the bits of these ids."""
    words: defaultdict[int, int] = defaultdict(int)
    for i in ids:
        words[i // 32] |= 1 << i % 32
    return {word: np.uint32(bits) for word, bits in words.items()}


def _short(message: str) -> str:
    return " ".join(message.split())[:_MAX_MESSAGE]


def _refused(structured: Structured, reason: str) -> RequestError:
    return RequestError(
        f"structured {structured.kind} cannot be enforced ({_short(reason)}): change it, or leave it out",
        "structured",
    )
