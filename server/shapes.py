"""From what an engine step gives to what a choice shows, in the shape of each endpoint.

Streamed and whole answers are made of the same parts, so that they are equal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET

from core.engine.output import Delta
from core.model.tokenizer import Detokenizer, Tokenizer
from server.chat import Asked
from server.logprobs import (
    ChatLogprobs,
    Offsets,
    PromptLogprobs,
    Spelling,
    TextLogprobs,
    prompt_offsets,
)
from server.responses import ChatChoice, ChatMessage, TextChoice
from server.schema import ChatBody, CompletionBody


@dataclass
class Part:
    """What one step, or several, add to a choice."""

    texts: list[str]
    logprobs: Any  # of ChatLogprobs or TextLogprobs, or None
    prompt_logprobs: PromptLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def shows(self) -> bool:
        """Whether there is anything to send."""
        return any(self.texts) or bool(self.logprobs or self.prompt_logprobs or self.finish_reason)

    def extend(self, more: "Part") -> None:
        """Take in what comes next."""
        self.texts += more.texts
        if self.logprobs is not None:
            self.logprobs.extend(more.logprobs)
        self.finish_reason, self.stop_reason = more.finish_reason, more.stop_reason


class _Writer:
    """Parts of one choice, step by step."""

    def __init__(self, tokenizer: Tokenizer, asked: Asked, num_logprobs: int | None, body: Any) -> None:
        self._tokenizer = tokenizer
        self._spelling = Spelling(tokenizer)
        self._asked = asked
        self._prompt_ids: Sequence[int] = asked.request.prompt_ids
        self._num_logprobs = num_logprobs
        self._num_prompt_logprobs: int | None = body.prompt_logprobs
        self._first = True

    def part(self, delta: Delta) -> Part:
        first, self._first = self._first, False
        prompt_logprobs = None
        if first and self._num_prompt_logprobs is not None:
            prompt_logprobs = self._spelling.prompt(self._prompt_ids, delta.prompt_logprobs, self._num_prompt_logprobs)
        logprobs = None if self._num_logprobs is None else self._logprobs(delta, first, self._num_logprobs)
        texts = [*self._prefix(delta, first), delta.text]
        return Part(texts, logprobs, prompt_logprobs, delta.finish_reason, delta.stop_reason)

    def _prefix(self, delta: Delta, first: bool) -> list[str]:
        return []

    def _logprobs(self, delta: Delta, first: bool, k: int) -> Any:
        raise NotImplementedError


class _ChatWriter(_Writer):
    def _logprobs(self, delta: Delta, first: bool, k: int) -> ChatLogprobs:
        by_token = delta.finish_reason == "stop" and not isinstance(delta.stop_reason, str)
        ended = by_token and delta.token_ids[-1] in self._asked.request.stop_ids
        return self._spelling.chat(delta.token_ids, delta.logprobs, ended)


class _TextWriter(_Writer):
    def __init__(self, tokenizer: Tokenizer, asked: Asked, num_logprobs: int | None, body: CompletionBody) -> None:
        super().__init__(tokenizer, asked, num_logprobs, body)
        self._echoed = ""
        if body.echo:
            self._echoed = _prompt_text(tokenizer, asked, body.prompt_only)
        self._echo = bool(body.echo)
        self._offsets = Offsets(tokenizer, self._prompt_ids, len(self._echoed))

    def _prefix(self, delta: Delta, first: bool) -> list[str]:
        return [self._echoed] if first else []

    def _logprobs(self, delta: Delta, first: bool, k: int) -> TextLogprobs:
        made = self._spelling.completion(delta.token_ids, delta.logprobs, k, self._offsets.of(delta.token_ids))
        if not (first and self._echo):
            return made
        offsets = prompt_offsets(self._tokenizer, self._echoed, self._prompt_ids)
        prompt = self._spelling.completion(self._prompt_ids, [None, *delta.prompt_logprobs], k, offsets)
        prompt.extend(made)
        return prompt


def _prompt_text(tokenizer: Tokenizer, asked: Asked, prompt_only: bool) -> str:
    """What is echoed: the text as it was sent, or that of the ids. What is generated may end a character of it."""
    if asked.prompt is not None:
        return asked.prompt
    detokenizer = Detokenizer(tokenizer)
    text = detokenizer.push(asked.request.prompt_ids)
    return text + detokenizer.finish() if prompt_only else text


class ChatShape:
    """The shape of /v1/chat/completions."""

    whole = "chat.completion"
    chunk = "chat.completion.chunk"

    def __init__(self, body: ChatBody, tokenizer: Tokenizer) -> None:
        self._body = body
        self._tokenizer = tokenizer

    def writer(self, asked: Asked) -> _Writer:
        return _ChatWriter(self._tokenizer, asked, self._body.num_logprobs, self._body)

    @staticmethod
    def opening(index: int) -> list[ChatChoice]:
        return [ChatChoice(index, delta=ChatMessage("assistant", ""))]

    @staticmethod
    def piece(index: int, part: Part) -> ChatChoice:
        message = ChatMessage(content=part.text or UNSET)
        return ChatChoice(index, UNSET, message, part.logprobs, part.finish_reason, part.stop_reason)

    @staticmethod
    def full(index: int, part: Part) -> ChatChoice:
        message = ChatMessage("assistant", part.text)
        return ChatChoice(index, message, UNSET, part.logprobs, part.finish_reason, part.stop_reason)

    @staticmethod
    def beside_choices(index: int, part: Part) -> Any:
        """The prompt's log-probabilities, which are the same for every choice."""
        return UNSET if index or part.prompt_logprobs is None else part.prompt_logprobs


class TextShape:
    """The shape of /v1/completions."""

    whole = "text_completion"
    chunk = "text_completion"

    def __init__(self, body: CompletionBody, tokenizer: Tokenizer) -> None:
        self._body = body
        self._tokenizer = tokenizer

    def writer(self, asked: Asked) -> _Writer:
        return _TextWriter(self._tokenizer, asked, self._body.num_logprobs, self._body)

    @staticmethod
    def opening(index: int) -> list[TextChoice]:
        return []

    @staticmethod
    def piece(index: int, part: Part) -> TextChoice:
        prompt = UNSET if part.prompt_logprobs is None else part.prompt_logprobs
        return TextChoice(index, part.text, part.logprobs, part.finish_reason, part.stop_reason, prompt)

    full = piece

    @staticmethod
    def beside_choices(index: int, part: Part) -> Any:
        return UNSET
