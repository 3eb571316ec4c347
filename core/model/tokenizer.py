"""Text to token ids and back, over the `tokenizers` library.

Every token stands for bytes, and text is those bytes read as UTF-8; bytes that are not UTF-8 become U+FFFD. The same
rule decodes at once and piece by piece, so a stream is equal to the whole, however it is cut. Refuses decoders that do
not map tokens to bytes one by one.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from core.errors import ConfigError, RequestError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_CONTEXT_TOKENS = 8

LONG_CHARS = 20_000
"""A text from which on encoding takes milliseconds, in which other threads must be able to run."""


class Tokenizer:
    """A tokenizer. Safe to use from several threads."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        """Raises: ConfigError when the tokenizer's decoder is of an unknown kind."""
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._rules = _read_decoder(backend)
        self._bytes: dict[int, bytes] = {}

    @property
    def leading_spaces(self) -> int:
        """Spaces that encoding puts before a text, and decoding takes away again."""
        return self._rules.leading_spaces

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest id. A model's logits may be wider: ids from here on decode to nothing."""
        return max(self._backend.get_vocab(with_added_tokens=True).values()) + 1

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that steer the model and are no text, such as the end of a turn."""
        return frozenset(i for i, token in self._backend.get_added_tokens_decoder().items() if token.special)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text; special tokens written in it count. With `add_special_tokens`, also those around it (BOS).

        Raises: RequestError when the text is not Unicode (a lone surrogate).
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the text has half of a character at position {error.start}: send valid Unicode"
            ) from error
        if len(text) < LONG_CHARS:
            return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)
        # Of the library's calls, only those for batches let other threads run meanwhile.
        return list(self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`, as of the start of a text."""
        detokenizer = Detokenizer(self, skip_special_tokens=skip_special_tokens)
        return detokenizer.push(ids) + detokenizer.finish()

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to the text; empty for an id that is not in the vocabulary."""
        found = self._bytes.get(token_id)
        if found is None:
            token = self.id_to_token(token_id)
            found = self._bytes[token_id] = b"" if token is None else self._rules.token_bytes(token)
        return found

    def id_to_token(self, token_id: int) -> str | None:
        """The token as the vocabulary writes it, or None."""
        token: str | None = self._backend.id_to_token(token_id)
        return token

    def token_to_id(self, token: str) -> int | None:
        token_id: int | None = self._backend.token_to_id(token)
        return token_id

    def save(self, path: Path) -> None:
        """Writes tokenizer.json."""
        self._backend.save(str(path))


class Detokenizer:
    """Text of ids that come bit by bit.

    All pushes and `finish` together give what `Tokenizer.decode` gives for all ids. At most 3 bytes are held back:
    the begin of a character whose rest may still come.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        context_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        kept_ids: Collection[int] = (),
    ) -> None:
        """`context_ids` come before, and are no part of, the text: a character or a space may cross the border.
        `kept_ids` are text even where they are special."""
        self._tokenizer = tokenizer
        self._skip = tokenizer.special_ids - set(kept_ids) if skip_special_tokens else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = tokenizer.leading_spaces
        self.push(context_ids[-_CONTEXT_TOKENS:])

    def push(self, ids: Iterable[int]) -> str:
        """The text that is certain with these ids; may be empty."""
        token_bytes, skip = self._tokenizer.token_bytes, self._skip
        return self._stripped(self._utf8.decode(b"".join(token_bytes(i) for i in ids if i not in skip)))

    def finish(self) -> str:
        """The rest: U+FFFD for a character that never became whole."""
        return self._stripped(self._utf8.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        while self._strip and text:
            if text[0] != " ":
                self._strip = 0
                break
            self._strip -= 1
            text = text[1:]
        return text


class StopStrings:
    """Finds stop strings in text that comes bit by bit.

    The match that starts first wins; of several with the same start, the longest. What is emitted and matched does not
    depend on how the text is cut: only text that may be the start of a match is held back.
    """

    def __init__(self, stops: Sequence[str], included: bool = False) -> None:
        """`included`: the match is output too."""
        assert all(stops), "an empty stop string matches everywhere; SamplingParams refuses it"
        self._stops = sorted(stops, key=len, reverse=True)
        self._included = included
        self._held = ""
        self._matched: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """(text up to any match that is certain to be output, the stop string found or None).

        After a match all further text is dropped.
        """
        return self._scan(text, final=False)

    def flush(self) -> tuple[str, str | None]:
        """As `push`, when no more text will come: also what was held back."""
        return self._scan("", final=True)

    def _scan(self, text: str, final: bool) -> tuple[str, str | None]:
        if self._matched is not None or not self._stops:
            return ("" if self._matched else text), self._matched
        text, self._held = self._held + text, ""
        for start in range(len(text)):
            rest = len(text) - start
            if not final and any(len(s) > rest and text.endswith(s[:rest]) for s in self._stops):
                self._held = text[start:]
                return text[:start], None
            self._matched = next((s for s in self._stops if text.startswith(s, start)), None)
            if self._matched is not None:
                end = start + len(self._matched) if self._included else start
                return text[:end], self._matched
        return text, None


class _DecoderRules:
    """What a tokenizer.json's decoder does to one token."""

    def __init__(self) -> None:
        self.byte_level = False
        self.byte_fallback = False
        self.replacements: list[tuple[str, str]] = []
        self.leading_spaces = 0

    def add(self, step: Mapping[str, Any]) -> None:
        """Raises: ConfigError for a step that does not work token by token."""
        kind = step["type"]
        if kind == "Sequence":
            for each in step["decoders"]:
                self.add(each)
        elif kind == "ByteLevel":
            self.byte_level = True
        elif kind == "ByteFallback":
            self.byte_fallback = True
        elif kind == "Replace" and "String" in step["pattern"]:
            self.replacements.append((step["pattern"]["String"], step["content"]))
        elif kind == "Metaspace":
            self.replacements.append((step["replacement"], " "))
            self.leading_spaces = int(step["prepend_scheme"] != "never")
        elif kind == "Strip" and step["content"] == " " and step["stop"] == 0:
            self.leading_spaces = step["start"]
        elif kind != "Fuse":
            raise ConfigError(
                f"the tokenizer decodes with {kind!r}: core knows ByteLevel, ByteFallback, Metaspace, Replace of a "
                "string and Strip of leading spaces"
            )

    def token_bytes(self, token: str) -> bytes:
        if self.byte_level:
            try:
                return bytes(_BYTE_OF_CHAR[char] for char in token)
            except KeyError:  # an added token, which is plain text
                return token.encode()
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(match[1])
        for old, new in self.replacements:
            token = token.replace(old, new)
        return token.encode()


def _read_decoder(backend: tokenizers.Tokenizer) -> _DecoderRules:
    if backend.decoder is None:
        raise ConfigError("the tokenizer has no decoder: tokenizer.json is incomplete; fetch it again")
    rules = _DecoderRules()
    rules.add(json.loads(backend.decoder.__getstate__()))
    return rules


def _byte_of_char() -> dict[str, int]:
    """The printable character that stands for each byte in byte-level vocabularies. Source: the GPT-2 vocabulary."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF_CHAR = _byte_of_char()


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint folder. Its tokenizer.json alone says what `encode` adds to a text.

    Raises: ConfigError when tokenizer.json is missing or unreadable.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(f"{folder} has no tokenizer.json: write one with transformers (tokenizer.save_pretrained)")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(f"{path} cannot be read ({error}): fetch it again, or upgrade tokenizers") from error
    return Tokenizer(backend)
