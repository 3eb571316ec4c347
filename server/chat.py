"""From a checked body to requests for the engine: template, tokens, limits.

Templated text is encoded without special tokens (the template writes them), raw prompts with. Work on long
input leaves the event loop, so that a long prompt does not stall other clients' streams.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec

from core.engine.defaults import fit
from core.engine.front import Front
from core.errors import RequestError
from core.model.source import ModelSource
from core.request import MAX_N, Request, SamplingParams, Structured, new_request_id
from server.conversation import ChatBody
from server.dialect import Dialect
from server.reader import Parsers
from server.reasoning import Start
from server.schema import Body, CompletionBody, Prompt
from server.template import prompt_of

T = TypeVar("T")

LONG_INPUT = 20_000
"""Characters, or ids, from which preparing a request takes milliseconds."""

ANYTHING = Structured("regex", "(?s:.*)")
"""The form of an answer that has none."""

MAX_CHOICES = 1024
"""Of one request: prompts times n."""


class Asked(NamedTuple):
    """One choice: what the engine is asked.

    prompt    where it was sent as text, or in a chat what the answer begins with
    parsers   what to look for in the output
    """

    request: Request
    prompt: str | None
    parsers: Parsers


class Desk:
    """Turns bodies into engine requests. Raises: RequestError where the model cannot take one.

    max_model_len   tokens of a prompt with its output
    """

    def __init__(self, source: ModelSource, front: Front, max_model_len: int, dialect: Dialect) -> None:
        self.tokenizer = source.tokenizer()
        self._front = front
        self._dialect = dialect
        self._max_model_len = max_model_len

    @property
    def reasons(self) -> bool:
        """Whether the model may reason before it answers."""
        return self._dialect.reasoning is not None

    async def chat(self, body: ChatBody, sampling: SamplingParams) -> list[Asked]:
        """The n choices of a conversation."""
        request_id = new_request_id("chatcmpl")

        def make() -> list[Asked]:
            text, parsers = prompt_of(body, self._dialect)
            form = self._form(body, parsers)
            held = msgspec.structs.replace(sampling, structured=form)
            ids = self.tokenizer.encode(text, add_special_tokens=bool(body.add_special_tokens))
            ids = body.truncated(ids, self._max_model_len)
            begin = body.messages[-1].content if body.echo else None
            return self._choices(ids, begin, parsers, body, held, request_id, 0)

        return await off_loop_if(body.num_chars * sampling.n, make)

    def _form(self, body: ChatBody, parsers: Parsers) -> Structured | None:
        """What outputs are held to: a form, or calls."""
        form = body.form.structured if body.form else None
        choice = body.choice
        if choice != "none":
            self._check_choice(body, choice)
            parallel = body.parallel_tool_calls is not False
            form = self._dialect.tools.held_to(body.callable, choice == "required", parallel, form)
        budget = body.thinking_token_budget
        if budget is not None:
            form = form or ANYTHING
            _check_budget(budget, parsers)
        if form is not None and parsers.reasoning is not None:
            form = parsers.reasoning.before(form, parsers.start, budget)
        return form

    def _check_choice(self, body: ChatBody, choice: str) -> None:
        """Raises: RequestError where the model may not choose, or cannot show what it chose."""
        if choice == "auto" and not self._dialect.auto_tool_choice:
            raise RequestError(
                "tool_choice is auto, which this server was started without (--no-enable-auto-tool-choice): "
                "send none, required, or the name of a function",
                "tool_choice",
            )
        if body.form is None:
            return
        if choice == "required":
            raise RequestError(
                f"{body.form.field} asks for a form, and tools must be called: send tool_choice auto for an output "
                'that is one or the other, or "none", or leave the form out',
                body.form.field,
            )
        if not self._dialect.tools.open:
            raise RequestError(
                f"{body.form.field} asks for a form, and calls written as {self._dialect.tools.name} have no mark that "
                'tells them from one: send tool_choice "none", or leave the form out',
                body.form.field,
            )

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
            whole = self.tokenizer.encode(prompt, add_special_tokens=body.add_special_tokens is not False)
        else:
            whole = prompt
        ids = body.truncated(whole, self._max_model_len)
        text = prompt if isinstance(prompt, str) and len(ids) == len(whole) else None
        return self._choices(ids, text, Parsers(), body, sampling, request_id, first)

    def _choices(
        self,
        ids: list[int],
        prompt: str | None,
        parsers: Parsers,
        body: Body,
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
        return [Asked(make(request_id=f"{request_id}-{first + i}", index=i), prompt, parsers) for i in indices]

    def chat_ids(self, body: ChatBody) -> list[int]:
        """The prompt that a conversation makes. Raises: RequestError where the model has no template for it."""
        text = prompt_of(body, self._dialect).text
        return self.tokenizer.encode(text, add_special_tokens=bool(body.add_special_tokens))


def _check_budget(budget: int, parsers: Parsers) -> None:
    """Raises: RequestError where it could not be kept."""
    if parsers.reasoning is None:
        reason = "this model does not reason (reasoning_parser none)"
    elif parsers.start is Start.MAYBE:
        reason = "this model's template does not show whether an output reasons"
    else:
        return
    raise RequestError(f"thinking_token_budget is {budget}: {reason}; leave it out", "thinking_token_budget")


async def off_loop_if(size: int, work: Callable[[], T]) -> T:
    """The result of `work`, which takes long when `size` characters or ids are `LONG_INPUT`."""
    return await asyncio.to_thread(work) if size >= LONG_INPUT else work()
