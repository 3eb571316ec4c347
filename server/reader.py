"""From the ids of one output to what an answer shows: reasoning, content, and calls.

All endpoints read outputs here, so streamed and whole answers are equal. The order is: ids to text, reasoning off it,
calls off the rest, and stop strings in what is left. So a stop string ends an answer where its content has it, and
never inside of reasoning or of a call.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from core.engine.output import TextOutput
from core.model.tokenizer import StopStrings, Tokenizer
from core.request import Logprobs, SamplingParams, SequenceOutput
from server.reasoning import ReasoningFormat, ReasoningParser, Start, Thought
from server.tools.format import Argued, Called, CallParser, Event, Said, ToolFormat


class CallPart(NamedTuple):
    """More of the call `number`: its begin, with a name and an id, or arguments."""

    number: int
    name: str
    call_id: str
    arguments: str


@dataclass(slots=True)
class Read:
    """What one engine output adds to an answer.

    stop_reason     the stop string or the stop id that ended it, where one did
    num_reasoning   of token_ids
    """

    content: str
    token_ids: list[int]
    finish_reason: str | None
    stop_reason: str | int | None
    logprobs: list[Logprobs] = field(default_factory=list)
    prompt_logprobs: list[Logprobs] = field(default_factory=list)
    reasoning: str = ""
    calls: list[CallPart] = field(default_factory=list)
    num_reasoning: int = 0


class Reader:
    """Reads one output; this one takes all of it for content."""

    def __init__(self, tokenizer: Tokenizer, sampling: SamplingParams, prompt_ids: list[int]) -> None:
        self._text = TextOutput(tokenizer, sampling, prompt_ids)

    def push(self, output: SequenceOutput) -> Read:
        """Take in an output. When the finish reason is not None and the output's is, a stop string matched: nothing
        more is to be pushed."""
        delta = self._text.push(output)
        return Read(
            delta.text,
            delta.token_ids,
            delta.finish_reason,
            delta.stop_reason,
            delta.logprobs,
            delta.prompt_logprobs,
        )


@dataclass(frozen=True)
class Parsers:
    """What to look for in outputs.

    start        where outputs begin
    beside_form  calls are all of an answer, or there are none
    together     reasoning is shown as it was written, at the begin of the content
    """

    reasoning: ReasoningFormat | None = None
    start: Start = Start.ANSWER
    tools: ToolFormat | None = None
    beside_form: bool = False
    together: bool = False

    def open(self, tokenizer: Tokenizer, sampling: SamplingParams, prompt_ids: list[int]) -> Reader:
        """A reader of one output."""
        if self.reasoning is None and self.tools is None:
            return Reader(tokenizer, sampling, prompt_ids)
        return ParsingReader(tokenizer, sampling, prompt_ids, self)

    def kept_ids(self, tokenizer: Tokenizer) -> list[int]:
        """Special tokens that are marks, which readers must see."""
        marks = [*(self.reasoning.marks if self.reasoning else ()), *(self.tools.marks if self.tools else ())]
        return [i for i in tokenizer.special_ids if any((tokenizer.id_to_token(i) or " ") in mark for mark in marks)]


class ParsingReader(Reader):
    """Reads one output in which there may be reasoning and calls."""

    def __init__(self, tokenizer: Tokenizer, sampling: SamplingParams, prompt_ids: list[int], parsers: Parsers) -> None:
        whole = msgspec.structs.replace(sampling, stop=())
        self._text = TextOutput(tokenizer, whole, prompt_ids, parsers.kept_ids(tokenizer))
        self._thoughts = ReasoningParser(parsers.reasoning, parsers.start) if parsers.reasoning else None
        self._together = parsers.together
        self._calls = CallParser(parsers.tools, parsers.beside_form) if parsers.tools else None
        self._stops = StopStrings(sampling.stop, sampling.include_stop_str_in_output)
        self._new_id = parsers.tools.new_id if parsers.tools else str
        self._num_calls = self._num_undecided = 0

    def push(self, output: SequenceOutput) -> Read:
        read = super().push(output)
        answer, read.content = read.content, ""
        if self._thoughts:
            answer = self._without_thoughts(answer, read)
        events = self._events(answer, read.finish_reason is not None)
        matched = self._show(events, read)
        if matched is None and read.finish_reason is not None:
            rest, matched = self._stops.flush()
            read.content += rest
        if matched is not None:
            read.finish_reason, read.stop_reason = "stop", matched
        elif read.finish_reason == "stop" and self._calls and self._calls.is_complete:
            read.finish_reason = "tool_calls"
        return read

    def _without_thoughts(self, text: str, read: Read) -> str:
        """Puts reasoning in its place. Returns the rest of the text."""
        assert self._thoughts
        was_in = self._thoughts.in_reasoning
        found = self._thoughts.push(text)
        self._num_undecided += len(read.token_ids)
        if was_in or self._thoughts.in_reasoning:
            read.num_reasoning, self._num_undecided = self._num_undecided, 0
        elif not self._thoughts.is_open:
            self._num_undecided = 0
        if read.finish_reason is not None:
            rest = self._thoughts.finish()
            found = Thought(*(begin + end for begin, end in zip(found, rest, strict=True)))
        if self._together:
            read.content = found.written
        else:
            read.reasoning = found.reasoning
        return found.answer

    def _events(self, answer: str, is_last: bool) -> Iterable[Event]:
        if self._calls is None:
            return [Said(answer)]
        return [*self._calls.push(answer), *(self._calls.finish() if is_last else [])]

    def _show(self, events: Iterable[Event], read: Read) -> str | None:
        """Adds what is to be shown. Returns the stop string found, after which nothing is."""
        for event in events:
            match event:
                case Said(text):
                    shown, matched = self._stops.push(text)
                    read.content += shown
                    if matched is not None:
                        return matched
                case Called(name):
                    self._num_calls += 1
                    read.calls.append(CallPart(self._num_calls - 1, name, self._new_id(), ""))
                case Argued(text):
                    read.calls.append(CallPart(self._num_calls - 1, "", "", text))
        return None
