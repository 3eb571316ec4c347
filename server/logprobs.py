"""Log-probabilities in the shapes that clients expect.

`bytes` are what a token adds to the text: joined they are the text's UTF-8, also where a character is spread over
tokens. Special tokens, and a token that ended the output, add nothing. A token that is no whole text by itself is
written `bytes:\\xf0\\x9f`, as OpenAI does, so that no two tokens look the same.
"""

from collections.abc import Collection, Sequence

import msgspec

from core.model.tokenizer import Detokenizer, Tokenizer
from core.request import Logprobs

LEAST = -9999.0
"""Stands for minus infinity, which JSON has not."""


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """Of /v1/chat/completions."""

    content: list[TokenLogprob]
    refusal: None = None

    def extend(self, more: "ChatLogprobs") -> None:
        self.content += more.content


class TextLogprobs(msgspec.Struct):
    """Of /v1/completions. The first token of an echoed prompt has none: null. The likeliest include the token itself.

    text_offset   where each token begins in the choice's text, in characters
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]

    def extend(self, more: "TextLogprobs") -> None:
        self.tokens += more.tokens
        self.token_logprobs += more.token_logprobs
        self.top_logprobs += more.top_logprobs
        self.text_offset += more.text_offset


class PromptLogprob(msgspec.Struct):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]
"""Of a prompt's tokens, by id; the first has none."""


class Spelling:
    """How tokens are written.

    hidden_ids   add nothing to the text
    as_ids       tokens are written "token_id:17"
    """

    def __init__(self, tokenizer: Tokenizer, hidden_ids: Collection[int], as_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._hidden_ids = hidden_ids
        self._as_ids = as_ids

    def added_bytes(self, token_id: int) -> bytes:
        return b"" if token_id in self._hidden_ids else self._tokenizer.token_bytes(token_id)

    def text(self, token_id: int) -> str:
        if self._as_ids:
            return f"token_id:{token_id}"
        try:
            return self._tokenizer.token_bytes(token_id).decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self._tokenizer.token_bytes(token_id))

    def chat(self, token_ids: Sequence[int], reports: Sequence[Logprobs], ended: bool) -> ChatLogprobs:
        """`ended`: the last token ended the output, and is not part of it."""
        content = []
        for position, (token_id, report) in enumerate(zip(token_ids, reports, strict=True), 1):
            own = self._entry(token_id, report.logprob)
            if ended and position == len(token_ids):
                own.bytes = []
            top = [self._entry(*pair) for pair in zip(report.top_ids, report.top_logprobs, strict=True)]
            content.append(TokenLogprob(own.token, own.logprob, own.bytes, top))
        return ChatLogprobs(content)

    def _entry(self, token_id: int, logprob: float) -> TopLogprob:
        return TopLogprob(self.text(token_id), max(logprob, LEAST), list(self.added_bytes(token_id)))

    def completion(
        self, token_ids: Sequence[int], reports: Sequence[Logprobs | None], k: int | None, offsets: list[int]
    ) -> TextLogprobs:
        """With the `k` likeliest tokens of a report, or all that it has, each token's own added."""
        tokens = [self.text(i) for i in token_ids]
        own = [None if report is None else max(report.logprob, LEAST) for report in reports]
        top = [
            None if report is None else self._top(token, report, k)
            for token, report in zip(tokens, reports, strict=True)
        ]
        return TextLogprobs(tokens, own, top, offsets)

    def _top(self, token: str, report: Logprobs, k: int | None) -> dict[str, float]:
        top: dict[str, float] = {}
        for token_id, logprob in zip(report.top_ids[:k], report.top_logprobs[:k], strict=True):
            top.setdefault(self.text(token_id), max(logprob, LEAST))
        top.setdefault(token, max(report.logprob, LEAST))
        return top

    def prompt(self, token_ids: Sequence[int], reports: Sequence[Logprobs], k: int) -> PromptLogprobs:
        """Each token's own entry, and those of the `k` likeliest."""
        shown: PromptLogprobs = [None]
        for token_id, report in zip(token_ids[1:], reports, strict=True):
            top = zip(report.top_ids[:k], report.top_logprobs[:k], strict=True)
            entries = {i: PromptLogprob(max(p, LEAST), rank, self.text(i)) for rank, (i, p) in enumerate(top, 1)}
            entries[token_id] = PromptLogprob(max(report.logprob, LEAST), report.rank, self.text(token_id))
            shown.append(entries)
        return shown


class Offsets:
    """Where in a choice's text each token begins.

    A token that begins inside a character begins where that character does.
    """

    def __init__(self, tokenizer: Tokenizer, context_ids: Sequence[int], start: int, skip: bool) -> None:
        """`context_ids` come before the text at `start`. `skip`: special tokens are no part of it."""
        self._detokenizer = Detokenizer(tokenizer, context_ids, skip)
        self._at = start

    def of(self, token_ids: Sequence[int]) -> list[int]:
        """Of the tokens that come next."""
        offsets = []
        for token_id in token_ids:
            offsets.append(self._at)
            self._at += len(self._detokenizer.push([token_id]))
        return offsets


def prompt_offsets(tokenizer: Tokenizer, text: str, token_ids: Sequence[int]) -> list[int]:
    """Where in a prompt's text each of its tokens begins. Special tokens count where they are written in the text."""
    detokenizer = Detokenizer(tokenizer)
    at, offsets = 0, []
    for token_id in token_ids:
        offsets.append(min(at, len(text)))
        if token_id in tokenizer.special_ids:
            written = tokenizer.id_to_token(token_id) or ""
            at += len(written) if text.startswith(written, at) else 0
        else:
            at += len(detokenizer.push([token_id]))
    return offsets
