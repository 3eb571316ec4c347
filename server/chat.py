"""From a checked body to requests for the engine: template, tokens, limits.

Templated text is encoded without special tokens (the template writes them), raw prompts with. Work on long
input leaves the event loop, so that a long prompt does not stall other clients' streams.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from core.engine.defaults import fit
from core.engine.front import Front
from core.errors import RequestError
from core.model.chat_template import render
from core.model.source import ModelSource
from core.request import MAX_N, Request, SamplingParams, new_request_id
from server.schema import ChatBody, CompletionBody, Message, Prompt

T = TypeVar("T")

LONG_INPUT = 20_000
"""Characters, or ids, from which preparing a request takes milliseconds."""

MAX_CHOICES = 1024
"""Of one request: prompts times n."""


class Asked(NamedTuple):
    """One choice: what the engine is asked, and the prompt where it was sent as text."""

    request: Request
    prompt: str | None


class Desk:
    """Turns bodies into engine requests. Raises: RequestError where the model cannot take one.

    max_model_len   tokens of a prompt with its output
    """

    def __init__(self, source: ModelSource, front: Front, max_model_len: int) -> None:
        self.tokenizer = source.tokenizer()
        self._front = front
        self._source = source
        self._max_model_len = max_model_len

    async def chat(self, body: ChatBody, sampling: SamplingParams) -> list[Asked]:
        """The n choices of a conversation."""
        request_id = new_request_id("chatcmpl")
        size = sum(len(message.content) for message in body.messages)

        def make() -> list[Asked]:
            return self._choices(self._chat_ids(body.messages), None, body, sampling, request_id, 0)

        try:
            return await off_loop_if(size * sampling.n, make)
        except RequestError as error:
            raise _in_terms_of(body, error) from None

    async def completion(self, body: CompletionBody, sampling: SamplingParams) -> list[Asked]:
        """The n choices of each prompt, prompt by prompt."""
        if sampling.n <= MAX_N and len(body.prompt) * sampling.n > MAX_CHOICES:
            raise RequestError(
                f"n is {sampling.n} for {len(body.prompt)} prompts: one request may have {MAX_CHOICES} choices; "
                "split the prompts over several requests",
                "n",
            )
        request_id = new_request_id("cmpl")
        choices: list[Asked] = []
        for prompt in body.prompt:
            make = partial(self._prompt_choices, prompt, body, sampling, request_id, len(choices))
            choices += await off_loop_if(len(prompt) * sampling.n, make)
        return choices

    def _prompt_choices(
        self, prompt: Prompt, body: CompletionBody, sampling: SamplingParams, request_id: str, first: int
    ) -> list[Asked]:
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt, add_special_tokens=True)
            return self._choices(ids, prompt, body, sampling, request_id, first)
        return self._choices(prompt, None, body, sampling, request_id, first)

    def _choices(
        self,
        ids: list[int],
        prompt: str | None,
        body: ChatBody | CompletionBody,
        sampling: SamplingParams,
        request_id: str,
        first: int,
    ) -> list[Asked]:
        """The n choices of one prompt; the first one has the index `first`."""
        if body.max_new_tokens is None:
            sampling = fit(sampling, len(ids), self._max_model_len)
        make = partial(
            self._front.request, ids, sampling, priority=body.priority or 0, cache_salt=body.cache_salt or ""
        )
        # At least one, so that an n that is out of range is refused.
        indices = range(max(1, sampling.n))
        return [Asked(make(request_id=f"{request_id}-{first + i}", index=i), prompt) for i in indices]

    def _chat_ids(self, messages: Sequence[Message]) -> list[int]:
        if self._source.chat_template is None:
            raise RequestError(f"{self._source.name} has no chat template; use /v1/completions", "messages")
        turns = [{"role": message.role, "content": message.content} for message in messages]
        text = render(self._source.chat_template, turns, special_tokens=self._source.special_tokens)
        return self.tokenizer.encode(text, add_special_tokens=False)


def _in_terms_of(body: ChatBody, error: RequestError) -> RequestError:
    """The same error under the names of the fields that the client sent."""
    names = {"logprobs": "top_logprobs"}
    if body.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    message = str(error)
    for name, sent in names.items():
        message = re.sub(rf"\b{name}\b", sent, message)
    param = error.param or ""
    return RequestError(message, {"prompt": "messages", **names}.get(param, error.param))


async def off_loop_if(size: int, work: Callable[[], T]) -> T:
    """The result of `work`, which takes long when `size` characters or ids are `LONG_INPUT`."""
    return await asyncio.to_thread(work) if size >= LONG_INPUT else work()
