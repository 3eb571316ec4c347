"""From the ids of one request to its text.

The one place where ids become text and stop strings are found, so streamed text equals text that is not streamed.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from core.model.tokenizer import Detokenizer, StopStrings
from core.request import Logprobs, SamplingParams, SequenceOutput

if TYPE_CHECKING:
    from core.model.tokenizer import Tokenizer


class Delta(NamedTuple):
    """What one engine output adds.

    finish_reason   None while running
    stop_reason     the stop string or the stop id that ended it, where one did
    logprobs        of token_ids, and prompt_logprobs of the prompt's tokens from the second on, where asked for
    """

    text: str
    token_ids: list[int]
    finish_reason: str | None
    stop_reason: str | int | None
    logprobs: list[Logprobs] = []  # noqa: RUF012  a tuple's default, never changed
    prompt_logprobs: list[Logprobs] = []  # noqa: RUF012


class TextOutput:
    """Text of one request, output by output."""

    def __init__(
        self, tokenizer: Tokenizer, sampling: SamplingParams, prompt_ids: list[int], kept_ids: Collection[int] = ()
    ) -> None:
        """`kept_ids` are text even where they are special."""
        self._detokenizer = Detokenizer(tokenizer, prompt_ids[-8:], sampling.skip_special_tokens, kept_ids)
        self._stops = StopStrings(sampling.stop, sampling.include_stop_str_in_output)
        self._shows_stop_ids = sampling.include_stop_str_in_output
        self._eos_is_news = frozenset(sampling.stop_token_ids)

    def push(self, output: SequenceOutput) -> Delta:
        """Take in an output. When the finish reason is "stop" and the output's is None, a stop string matched: the
        caller aborts the request and pushes nothing more."""
        ids, before = output.new_ids, ""
        for num in range(1, len(ids)):  # a stop string may end before the last of several
            text, matched = self._stops.push(self._detokenizer.push(ids[num - 1 : num]))
            before += text
            if matched is not None:
                return Delta(before, ids[:num], "stop", matched, output.logprobs[:num], output.prompt_logprobs)
        ended = output.stop_id is not None and not self._shows_stop_ids
        text = self._detokenizer.push([] if ended else ids[-1:])
        if output.finish_reason is not None:
            text += self._detokenizer.finish()
        text, matched = self._stops.push(text)
        if matched is None and output.finish_reason is not None:
            rest, matched = self._stops.flush()
            text += rest
        text = before + text
        if matched is not None:
            return Delta(text, ids, "stop", matched, output.logprobs, output.prompt_logprobs)
        stop_reason = output.stop_id if output.stop_id in self._eos_is_news else None
        return Delta(text, ids, output.finish_reason, stop_reason, output.logprobs, output.prompt_logprobs)
