"""From what an engine step gives to what a choice shows, in the shape of each endpoint.

Streamed and whole answers are made of the same parts, so that they are equal.
"""

from dataclasses import dataclass
from typing import Any

from msgspec import UNSET

from core.model.tokenizer import Detokenizer, Tokenizer
from server.chat import Asked
from server.conversation import ChatBody
from server.logprobs import (
    ChatLogprobs,
    Offsets,
    PromptLogprobs,
    Spelling,
    TextLogprobs,
    prompt_offsets,
)
from server.reader import CallPart, Read
from server.responses import Call, CalledFunction, ChatChoice, ChatMessage, TextChoice
from server.schema import Body, CompletionBody


@dataclass(slots=True)
class Part:
    """What one step, or several, add to a choice.

    token_ids     where they are shown, else None
    num_tokens    how many were generated
    """

    texts: list[str]
    logprobs: Any  # of ChatLogprobs or TextLogprobs, or None
    prompt_logprobs: PromptLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None
    num_tokens: int
    token_ids: list[int] | None
    prompt_token_ids: list[int] | None
    reasoning: list[str]
    calls: list[CallPart]

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def shows(self) -> bool:
        """Whether there is anything to send."""
        texts = any(self.texts) or any(self.reasoning) or self.calls
        return bool(texts or self.token_ids or self.logprobs or self.prompt_logprobs or self.finish_reason)

    def extend(self, more: "Part") -> None:
        """Take in what comes next."""
        self.texts += more.texts
        self.reasoning += more.reasoning
        self.calls += more.calls
        self.num_tokens += more.num_tokens
        if self.logprobs is not None:
            self.logprobs.extend(more.logprobs)
        if self.token_ids is not None:
            self.token_ids += more.token_ids or []
        self.finish_reason, self.stop_reason = more.finish_reason, more.stop_reason


class _Writer:
    """Parts of one choice, step by step."""

    def __init__(self, tokenizer: Tokenizer, asked: Asked, body: Body) -> None:
        self._tokenizer = tokenizer
        self._skip = body.skip_special_tokens is not False
        hidden = tokenizer.special_ids - {*asked.parsers.kept_ids(tokenizer)} if self._skip else frozenset()
        self._spelling = Spelling(tokenizer, hidden, bool(body.return_tokens_as_token_ids))
        self._asked = asked
        self._body = body
        self._prompt_ids: list[int] = asked.request.prompt_ids
        self._first = True

    def part(self, read: Read) -> Part:
        first, self._first = self._first, False
        k, prompt_logprobs = self._body.prompt_logprobs, None
        if first and k is not None:
            prompt_logprobs = self._spelling.prompt(self._prompt_ids, read.prompt_logprobs, k)
        k = self._body.num_logprobs
        show_ids = bool(self._body.return_token_ids)
        return Part(
            texts=[*self._prefix(first), read.content],
            logprobs=None if k is None else self._logprobs(read, first, k),
            prompt_logprobs=prompt_logprobs,
            finish_reason=read.finish_reason,
            stop_reason=read.stop_reason,
            num_tokens=len(read.token_ids),
            token_ids=list(read.token_ids) if show_ids else None,
            prompt_token_ids=self._prompt_ids if show_ids and first else None,
            reasoning=self._reasoning(read),
            calls=read.calls,
        )

    def _prefix(self, first: bool) -> list[str]:
        """What stands before the output."""
        return []

    def _reasoning(self, read: Read) -> list[str]:
        return []

    def _logprobs(self, read: Read, first: bool, k: int) -> Any:
        raise NotImplementedError


class _ChatWriter(_Writer):
    _body: ChatBody

    def _reasoning(self, read: Read) -> list[str]:
        return [read.reasoning] if self._body.include_reasoning is not False else []

    def _prefix(self, first: bool) -> list[str]:
        return [self._asked.prompt] if first and self._asked.prompt else []

    def _logprobs(self, read: Read, first: bool, k: int) -> ChatLogprobs:
        by_token = read.finish_reason in ("stop", "tool_calls") and not isinstance(read.stop_reason, str)
        ended = by_token and read.token_ids[-1] in self._asked.request.stop_ids and not self._body.shows_stops
        return self._spelling.chat(read.token_ids, read.logprobs, ended)


class _TextWriter(_Writer):
    def __init__(self, tokenizer: Tokenizer, asked: Asked, body: CompletionBody) -> None:
        super().__init__(tokenizer, asked, body)
        self._echoed = ""
        if body.echo:
            self._echoed = _prompt_text(tokenizer, asked, body.prompt_only)
        self._echo = bool(body.echo)
        self._offsets = Offsets(tokenizer, self._prompt_ids, len(self._echoed), self._skip)

    def _prefix(self, first: bool) -> list[str]:
        return [self._echoed] if first else []

    def _logprobs(self, read: Read, first: bool, k: int) -> TextLogprobs:
        made = self._spelling.completion(read.token_ids, read.logprobs, None, self._offsets.of(read.token_ids))
        if not (first and self._echo):
            return made
        offsets = prompt_offsets(self._tokenizer, self._echoed, self._prompt_ids)
        prompt = self._spelling.completion(self._prompt_ids, [None, *read.prompt_logprobs], k, offsets)
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
        return _ChatWriter(self._tokenizer, asked, self._body)

    @staticmethod
    def opening(index: int) -> list[ChatChoice]:
        return [ChatChoice(index, delta=ChatMessage("assistant", ""))]

    def piece(self, index: int, part: Part) -> ChatChoice:
        message = ChatMessage(content=part.text or UNSET, tool_calls=_call_chunks(part) or UNSET)
        return self._choice(index, part, delta=_with_reasoning(message, part))

    def full(self, index: int, part: Part) -> ChatChoice:
        calls = _whole_calls(part)
        message = ChatMessage("assistant", part.text or (None if calls else ""), tool_calls=calls or UNSET)
        return self._choice(index, part, message=_with_reasoning(message, part))

    @staticmethod
    def _choice(index: int, part: Part, **message: ChatMessage) -> ChatChoice:
        return ChatChoice(
            index,
            **message,
            logprobs=part.logprobs,
            finish_reason=part.finish_reason,
            stop_reason=part.stop_reason,
            token_ids=_or_unset(part.token_ids),
        )

    @staticmethod
    def beside_choices(index: int, part: Part) -> dict[str, Any]:
        """What is of the prompt, which is the same for every choice."""
        if index:
            return {}
        ids = _or_unset(part.prompt_token_ids)
        return {"prompt_logprobs": _or_unset(part.prompt_logprobs), "prompt_token_ids": ids}


def _with_reasoning(message: ChatMessage, part: Part) -> ChatMessage:
    reasoning = "".join(part.reasoning)
    if reasoning:
        message.reasoning = message.reasoning_content = reasoning
    return message


def _or_unset(value: Any) -> Any:
    return UNSET if value is None else value


def _call_chunks(part: Part) -> list[Call]:
    """Calls as chunks have them: each number once, so that fragments of one step stand together."""
    chunks: dict[int, Call] = {}
    for each in part.calls:
        if each.name:
            chunks[each.number] = Call(CalledFunction(each.name), each.number, each.call_id, "function")
        chunk = chunks.setdefault(each.number, Call(CalledFunction(), each.number))
        chunk.function.arguments += each.arguments
    return list(chunks.values())


def _whole_calls(part: Part) -> list[Call]:
    calls = _call_chunks(part)
    for call in calls:
        call.index = UNSET
    return calls


class TextShape:
    """The shape of /v1/completions."""

    whole = "text_completion"
    chunk = "text_completion"

    def __init__(self, body: CompletionBody, tokenizer: Tokenizer) -> None:
        self._body = body
        self._tokenizer = tokenizer

    def writer(self, asked: Asked) -> _Writer:
        return _TextWriter(self._tokenizer, asked, self._body)

    @staticmethod
    def opening(index: int) -> list[TextChoice]:
        return []

    @staticmethod
    def piece(index: int, part: Part) -> TextChoice:
        return TextChoice(
            index,
            part.text,
            part.logprobs,
            part.finish_reason,
            part.stop_reason,
            _or_unset(part.prompt_logprobs),
            _or_unset(part.token_ids),
            _or_unset(part.prompt_token_ids),
        )

    full = piece

    @staticmethod
    def beside_choices(index: int, part: Part) -> dict[str, Any]:
        return {}
