"""Reasoning that a model writes before its answer, between two marks.

The answer begins after the end mark and the line breaks that models write there. Up to it stop strings do not count,
and forms do not hold. Whether an output begins inside of reasoning is read off the prompt.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import msgspec

from core.model.chat_template import variables
from core.request import Prelude, Structured
from server.tools.format import overlap


class Start(Enum):
    """Where an output begins.

    ANSWER   there is no reasoning
    MAYBE    with the begin mark, or else with the answer
    MARK     with the begin mark
    INSIDE   inside of reasoning
    """

    ANSWER = "answer"
    MAYBE = "maybe"
    MARK = "mark"
    INSIDE = "inside"


@dataclass(frozen=True)
class ReasoningFormat:
    """How a family of models reasons.

    opens   outputs begin inside of reasoning, where the prompt does not show otherwise
    gap     what these models write between `end` and the answer
    """

    name: str
    opens: bool = False
    begin: str = "<think>"
    end: str = "</think>"
    gap: str = "\n\n"

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.begin, self.end)

    def start(self, prompt: str, template: str) -> Start:
        """Where an output begins that follows this prompt, made by this template."""
        if prompt.rstrip().endswith(self.begin):
            return Start.INSIDE
        if prompt.rstrip().endswith(self.end):
            return Start.ANSWER
        if self.opens:
            return Start.INSIDE
        # A template that can switch reasoning off means it to be on where it did not.
        return Start.MARK if "enable_thinking" in variables(template) else Start.MAYBE

    def inside_of(self, content: str) -> Start:
        """Where an output begins that continues this content."""
        return Start.INSIDE if content.rfind(self.begin) > content.rfind(self.end) else Start.ANSWER

    def before(self, form: Structured, start: Start, max_tokens: int | None = None) -> Structured:
        """The form of an answer, as the form of an output that reasons for so many tokens at most."""
        if start in (Start.ANSWER, Start.MAYBE):
            return form
        begin = self.begin if start is Start.MARK else ""
        return msgspec.structs.replace(form, after=Prelude(begin, self.end, self.gap, max_tokens))


DEEPSEEK_R1 = ReasoningFormat("deepseek_r1", opens=True)
QWEN3 = ReasoningFormat("qwen3")

REASONING = {each.name: each for each in (DEEPSEEK_R1, QWEN3)}


class Thought(NamedTuple):
    """What a piece of text adds. `written` is all that stands before the answer, with its marks and line breaks."""

    reasoning: str
    answer: str
    written: str = ""


class ReasoningParser:
    """Parts reasoning from answer, piece by piece. What all pieces give together does not depend on how they are cut.

    in_reasoning   whether what comes next is reasoning
    is_open        whether that cannot be told yet
    """

    def __init__(self, spec: ReasoningFormat, start: Start) -> None:
        self._spec = spec
        self._text = ""  # not yet read
        states = {Start.ANSWER: self._answer, Start.INSIDE: self._blank}
        self._state: Callable[[], Thought | None] = states.get(start, self._mark)
        self._gap = 0

    @property
    def in_reasoning(self) -> bool:
        return self._state in (self._blank, self._inside)

    @property
    def is_open(self) -> bool:
        return self._state == self._mark

    def push(self, text: str) -> Thought:
        whole = self._text = self._text + text
        reasoning = answer = ""
        while (more := self._state()) is not None:
            reasoning, answer = reasoning + more.reasoning, answer + more.answer
        return Thought(reasoning, answer, whole[: len(whole) - len(self._text) - len(answer)])

    def finish(self) -> Thought:
        """The rest, when no more text will come."""
        rest, self._text = self._text, ""
        return Thought(rest, "", rest) if self._state in (self._blank, self._inside) else Thought("", rest)

    # States. Each reads what it can; None: it needs more text.

    def _mark(self) -> Thought | None:
        text, begin = self._text.lstrip(), self._spec.begin
        if text.startswith(begin):
            self._text, self._state = text[len(begin) :], self._blank
        elif begin.startswith(text):
            return None
        else:
            self._state = self._answer
        return Thought("", "")

    def _blank(self) -> Thought | None:
        """Line breaks after the begin mark, which are left out."""
        self._text = self._text.lstrip("\n")
        if not self._text:
            return None
        self._state = self._inside
        return Thought("", "")

    def _inside(self) -> Thought | None:
        thought, found, after = self._text.partition(self._spec.end)
        if found:
            self._text, self._state, self._gap = after, self._after_end, len(self._spec.gap)
            return Thought(thought.rstrip("\n"), "")
        # Line breaks may stand before the end mark, where they are left out.
        sure = self._text[: len(self._text) - overlap(self._text, self._spec.end)].rstrip("\n")
        self._text = self._text[len(sure) :]
        return Thought(sure, "") if sure else None

    def _after_end(self) -> Thought | None:
        while self._gap and self._text.startswith("\n"):
            self._text, self._gap = self._text[1:], self._gap - 1
        if self._gap and not self._text:
            return None
        self._state = self._answer
        return Thought("", "")

    def _answer(self) -> Thought | None:
        answer, self._text = self._text, ""
        return Thought("", answer) if answer else None
