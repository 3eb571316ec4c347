"""How a family of models writes calls, as data, and the parser that reads what is so written.

An output's calls are written

    OPEN BEGIN  HEAD name MIDDLE arguments CLOSE  (SEPARATOR HEAD name MIDDLE arguments CLOSE)*  END

where arguments are a JSON object and all others are fixed. The same data makes the grammar (`core.engine.calls`) that
the model is held to, so the parser meets nothing else, other than an output that was cut off.
"""

import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from core.request import Structured
from server.tools.asked import Function


class Said(NamedTuple):
    """Text that is no part of a call."""

    text: str


class Called(NamedTuple):
    """A call begins."""

    name: str


class Argued(NamedTuple):
    """More of the arguments of the call that began last."""

    text: str


Event = Said | Called | Argued


@dataclass(frozen=True)
class ToolFormat:
    """How calls are written: see the top of this file.

    open         empty: an output is either calls, from its first character on, or has none
    begins       ways to write BEGIN; the first is the usual one
    separator    None: each call has an OPEN and an END of its own
    arguments_as_text   templates want the arguments of earlier calls as text, and not as an object
    id_chars     of a call's id: 0 means a long one
    """

    name: str
    head: str
    middle: str
    close: str
    open: str = ""
    begins: tuple[str, ...] = ("",)
    separator: str | None = None
    end: str = ""
    arguments_as_text: bool = False
    id_chars: int = 0

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that special tokens may stand in."""
        return (self.open, self.head, self.middle, self.close, self.end)

    def write(self, calls: Iterable[tuple[str, str]]) -> str:
        """(name, JSON of arguments) as a model writes them."""
        written = [f"{self.head}{name}{self.middle}{arguments}{self.close}" for name, arguments in calls]
        if self.separator is None:
            return "\n".join(f"{self.open}{self.begins[0]}{call}{self.end}" for call in written)
        return f"{self.open}{self.begins[0]}{self.separator.join(written)}{self.end}"

    def new_id(self) -> str:
        return secrets.token_hex(5)[: self.id_chars] if self.id_chars else f"call_{secrets.token_hex(12)}"

    def held_to(
        self, functions: Sequence[Function], required: bool, parallel: bool, form: Structured | None = None
    ) -> Structured:
        """The form of an output that calls these functions only.

        required   it must call; else a call is held to the form from OPEN on
        parallel   it may call several times
        form       where it need not call: what else it is, from its first character on
        """
        spec = {
            "open": self.open,
            "begins": self.begins,
            "head": self.head,
            "middle": self.middle,
            "close": self.close,
            "separator": self.separator,
            "end": self.end,
            "functions": [{"name": each.name, "schema": each.arguments_schema} for each in functions],
            "required": required,
            "parallel": parallel,
            "form": form and {"kind": form.kind, "text": form.text},
        }
        return Structured("calls", json.dumps(spec))


class CallParser:
    """Reads one output, piece by piece. What all pieces give together does not depend on how the text is cut.

    at_once       calls begin with the first character, or there are none
    is_complete   whether there was a call, and every call is whole
    """

    def __init__(self, spec: ToolFormat, at_once: bool = False) -> None:
        self._spec = spec
        at_once = at_once or not spec.open
        self._no_call = self._tail if at_once else self._outside
        self._text = ""  # not yet read
        self._raw = ""  # of a call whose name is not known yet
        self._object = _ObjectEnd()
        self._any = self._is_open = self._after_call = False
        self._state: Callable[[], list[Event] | None] = self._start if at_once else self._outside

    @property
    def is_complete(self) -> bool:
        return self._any and not self._is_open

    def push(self, text: str) -> list[Event]:
        """What is certain with this text."""
        self._text += text
        events: list[Event] = []
        while (more := self._state()) is not None:
            events += more
        return events

    def finish(self) -> list[Event]:
        """The rest, when no more text will come: what was not the begin of a call after all."""
        rest, self._text, self._raw = self._raw + self._text, "", ""
        is_markup = self._is_open or self._state == self._next
        return [Said(rest)] if rest and not is_markup else []

    # States. Each reads what it can, and returns what that gives; None: it needs more text.

    def _start(self) -> list[Event] | None:
        lead = self._spec.open or self._spec.head
        if lead.startswith(self._text[: len(lead)]):
            if len(self._text) < len(lead):
                return None
            self._state = self._outside if self._spec.open else self._head
        else:
            self._state = self._tail
        return []

    def _tail(self) -> list[Event] | None:
        said, self._text = self._text, ""
        return [Said(said)] if said else None

    def _outside(self) -> list[Event] | None:
        if self._after_call:
            self._text = self._text.lstrip()
        before, found, after = self._text.partition(self._spec.open)
        if found:
            self._raw, self._text, self._state = found, after, partial(self._literal, self._spec.begins, self._head)
        else:
            held = overlap(self._text, self._spec.open)
            before, self._text = self._text[: len(self._text) - held], self._text[len(self._text) - held :]
        self._after_call = self._after_call and not before
        return [Said(before)] if before else [] if found else None

    def _literal(self, choices: Sequence[str], then: Callable[[], list[Event] | None]) -> list[Event] | None:
        taken = next((each for each in choices if self._text.startswith(each)), None)
        if taken is None:
            return None if any(each.startswith(self._text) for each in choices) else self._give_up()
        self._raw, self._text, self._state = self._raw + taken, self._text[len(taken) :], then
        return []

    def _give_up(self) -> list[Event]:
        """It is no call. One may begin right after its first character."""
        said, self._text, self._raw = self._raw[:1], self._raw[1:] + self._text, ""
        self._state = self._no_call
        return [Said(said)] if said else []

    def _head(self) -> list[Event] | None:
        return self._literal([self._spec.head], self._read_name)

    def _read_name(self) -> list[Event] | None:
        name, found, after = self._text.partition(self._spec.middle)
        if not found:
            return None
        self._raw, self._text, self._state = "", after, self._arguments
        self._object = _ObjectEnd()
        self._any = self._is_open = True
        return [Called(name)]

    def _arguments(self) -> list[Event] | None:
        size = self._object.read(self._text)
        argued, self._text = self._text[:size], self._text[size:]
        if self._object.found:
            self._state = partial(self._literal, [self._spec.close], self._next)
        elif not argued:
            return None
        return [Argued(argued)] if argued else []

    def _next(self) -> list[Event] | None:
        """After CLOSE: another call, or the end of all."""
        self._raw, self._is_open = "", False
        separator, end = self._spec.separator, self._spec.end
        if separator is not None and self._text.startswith(separator):
            self._text, self._is_open, self._state = self._text[len(separator) :], True, self._head
            return []
        if any(each is not None and each.startswith(self._text) and each != self._text for each in (separator, end)):
            return None
        if not self._text.startswith(end):
            return self._give_up()
        self._text, self._after_call = self._text[len(end) :], True
        self._state = self._outside if self._spec.open else self._tail
        return []


class _ObjectEnd:
    """Finds the end of a JSON object that comes bit by bit."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False
        self.found = False

    def read(self, text: str) -> int:
        """How many characters of `text` belong to the object."""
        for at, char in enumerate(text):
            if self._in_string:
                self._in_string = self._escaped or char != '"'
                self._escaped = char == "\\" and not self._escaped
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if not self._depth:
                    self.found = True
                    return at + 1
        return len(text)


def overlap(text: str, marker: str) -> int:
    """How many characters at the end of `text` may be the begin of `marker`."""
    most = min(len(text), len(marker) - 1)
    return next((size for size in range(most, 0, -1) if text.endswith(marker[:size])), 0)
