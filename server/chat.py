"""From a checked body to requests for the engine: template, tokens, limits.

Templated text is encoded without special tokens (the template writes them), raw prompts with. Work on long
input leaves the event loop, so that a long prompt does not stall other clients' streams.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from core.engine.front import Front
from core.errors import RequestError
from core.model.chat_template import render
from core.model.source import ModelSource
from core.request import Request, SamplingParams, new_request_id
from server.schema import ChatBody, CompletionBody, Message, Prompt

T = TypeVar("T")

LONG_INPUT = 20_000
"""Characters, or ids, from which preparing a request takes milliseconds."""


class Desk:
    """Turns bodies into engine requests. Raises: RequestError where the model cannot take one."""

    def __init__(self, source: ModelSource, front: Front) -> None:
        self.tokenizer = source.tokenizer()
        self._front = front
        self._source = source

    async def chat(self, body: ChatBody, sampling: SamplingParams) -> list[Request]:
        """The one request for a conversation."""
        request_id = new_request_id("chatcmpl")
        size = sum(len(message.content) for message in body.messages)
        try:
            return [
                await _off_loop_if(size, lambda: self._make(self._chat_ids(body.messages), body, sampling, request_id))
            ]
        except RequestError as error:
            raise _in_terms_of(body, error) from None

    async def completion(self, body: CompletionBody, sampling: SamplingParams) -> list[Request]:
        """One request for each prompt."""
        request_id = new_request_id("cmpl")

        async def one(index: int, prompt: Prompt) -> Request:
            make = partial(self._make_from, prompt, body, sampling, f"{request_id}-{index}")
            return await _off_loop_if(len(prompt), make)

        return [await one(index, prompt) for index, prompt in enumerate(body.prompt)]

    def _make_from(self, prompt: Prompt, body: CompletionBody, sampling: SamplingParams, request_id: str) -> Request:
        ids = self.tokenizer.encode(prompt, add_special_tokens=True) if isinstance(prompt, str) else prompt
        return self._make(ids, body, sampling, request_id)

    def _make(
        self, ids: list[int], body: ChatBody | CompletionBody, sampling: SamplingParams, request_id: str
    ) -> Request:
        return self._front.request(
            ids, sampling, request_id=request_id, priority=body.priority or 0, cache_salt=body.cache_salt or ""
        )

    def _chat_ids(self, messages: Sequence[Message]) -> list[int]:
        if self._source.chat_template is None:
            raise RequestError(f"{self._source.name} has no chat template; use /v1/completions", "messages")
        turns = [{"role": message.role, "content": message.content} for message in messages]
        text = render(self._source.chat_template, turns, special_tokens=self._source.special_tokens)
        return self.tokenizer.encode(text, add_special_tokens=False)


def _in_terms_of(body: ChatBody, error: RequestError) -> RequestError:
    """The same error under the names of the fields that the client sent."""
    limit = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    param = {"prompt": "messages", "max_tokens": limit}.get(error.param or "", error.param)
    return RequestError(str(error).replace("max_tokens", limit) if error.param == "max_tokens" else str(error), param)


async def _off_loop_if(size: int, work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work) if size >= LONG_INPUT else work()
