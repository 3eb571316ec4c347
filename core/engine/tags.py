"""The grammar of structural tags, for llguidance: forms put together of parts, in text that may be free.

A part is an object with a `type`, as xgrammar has them; the older kind, `structures` and `triggers`, is one of them in
other words. What is known of a part is enforced, and anything else is refused by name. Free text must have an end that
can be seen: that of its tag, or that of the output.

Source: https://xgrammar.mlc.ai/docs/tutorials/structural_tag.html.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import llguidance

from core.engine.calls import TEXT, speller

Part = Mapping[str, Any]
Ends = tuple[str, ...] | None

_FIELDS: dict[str, tuple[set[str], set[str]]] = {
    "const_string": ({"value"}, set()),
    "json_schema": ({"json_schema"}, set()),
    "regex": ({"pattern"}, set()),
    "grammar": ({"grammar"}, set()),
    "any_text": (set(), set()),
    "sequence": ({"elements"}, set()),
    "or": ({"elements"}, set()),
    "optional": ({"content"}, set()),
    "star": ({"content"}, set()),
    "plus": ({"content"}, set()),
    "tag": ({"begin", "content", "end"}, set()),
    "triggered_tags": ({"triggers", "tags"}, {"at_least_one", "stop_after_first"}),
    "tags_with_separator": ({"tags", "separator"}, {"at_least_one", "stop_after_first"}),
}
"""Types of parts, and the fields of each: those that must be there, and those that may."""


def tags_grammar(spec: Part, special: Mapping[str, int], options: Mapping[str, Any]) -> str:
    """What llguidance takes, for {"format": part} or {"structures": [...], "triggers": [...]}.

    special   the special tokens, and their ids
    options   for llguidance's JSON schemas

    Raises: ValueError, TypeError or KeyError for what is no part, or cannot be enforced.
    """
    writer = _Writer(special, options)
    start = writer.followed(spec["format"] if "format" in spec else _as_part(spec), ())
    lark = "\n".join(["%llguidance {}", f"start: {start}", *writer.rules, f"TEXT: /{TEXT}/", ""])
    return json.dumps({"grammars": [{"lark_grammar": lark}, *writer.grammars]})


def _as_part(spec: Part) -> Part:
    """The older kind as a part."""
    tags = [
        {"begin": s["begin"], "content": {"type": "json_schema", "json_schema": s["schema"]}, "end": s["end"]}
        for s in spec["structures"]
    ]
    return {"type": "triggered_tags", "triggers": spec["triggers"], "tags": tags}


class _Writer:
    """Lark of parts. `rules` and `grammars` are what their expressions name."""

    def __init__(self, special: Mapping[str, int], options: Mapping[str, Any]) -> None:
        self._spell = speller(special)
        self._options = dict(options)
        self.rules: list[str] = []
        self.grammars: list[dict[str, str]] = []

    def followed(self, part: Part, ends: Ends) -> str:
        """A part, with one of `ends` behind it.

        ends   (): nothing follows; None: something does, which is no fixed text
        """
        kind = _checked(part)
        match kind:
            case "any_text":
                return self._free(ends)
            case "sequence":
                *first, last = _some(part, "elements")
                return " ".join([*(self.followed(each, None) for each in first), self.followed(last, ends)])
            case "or":
                return self._one_of(self.followed(each, ends) for each in _some(part, "elements"))
            case "triggered_tags":
                if ends != ():
                    raise ValueError("triggered_tags must stand at the end of all: free text may follow them")
                return self._triggered(part)
            case "tag":
                return self._tag(part, ends)
        return f"{self._plain(kind, part)} {self._fixed(ends)}"

    def _plain(self, kind: str, part: Part) -> str:
        """A part that ends by itself."""
        match kind:
            case "const_string":
                return self._spell(_text(part, "value")) or '""'
            case "json_schema":
                return self._named(f"%json {self._schema(part['json_schema'])}")
            case "regex":
                return "/" + re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", _text(part, "pattern")) + "/"
            case "grammar":
                name = f"grammar_{len(self.grammars)}"
                lark = llguidance.grammar_from("grammar", _text(part, "grammar"))
                self.grammars.append({"name": name, "lark_grammar": lark})
                return f"@{name}"
            case "tags_with_separator":
                return self._separated(part)
        repeated = {"optional": "?", "star": "*", "plus": "+"}[kind]
        return f"({self.followed(part['content'], None)}){repeated}"

    def _schema(self, schema: Any) -> str:
        if schema is True:
            schema = {}
        if not isinstance(schema, dict):
            raise TypeError(f"json_schema is {schema!r}: it must be an object")
        return json.dumps({**schema, "x-guidance": self._options})

    def _free(self, ends: Ends) -> str:
        if ends is None:
            raise ValueError("any_text must stand right before the end of a tag, or at the end of all")
        return self._named(f"TEXT {self._fixed(ends)}", "[lazy]") if ends else "TEXT"

    def _tag(self, part: Part, ends: Ends, trigger: str = "") -> str:
        """`trigger`: what of its begin is there already."""
        begin = self._spell(_text(part, "begin").removeprefix(trigger))
        end = part["end"]
        own = tuple(end) if isinstance(end, list) else (_text(part, "end"),)
        if own == ("",):
            return f"{begin} {self.followed(part['content'], ends)}"
        if not own or not all(isinstance(each, str) and each for each in own):
            raise ValueError(f"end is {end!r}: it must be a text, or texts that are not empty")
        return f"{begin} {self.followed(part['content'], own)} {self._fixed(ends)}"

    def _triggered(self, part: Part) -> str:
        triggers = _some(part, "triggers")
        again, first = [], []
        for tag in _some(part, "tags"):
            begin = _text(tag, "begin")
            trigger = next((t for t in triggers if t and begin.startswith(t)), None)
            if trigger is None:
                raise ValueError(f"begin {begin!r} starts with none of the triggers {triggers}")
            _checked(tag, "tag")
            spelled = self._spell(trigger)
            found = self._named(f"TEXT {spelled}", "[lazy]" if spelled.startswith('"') else "")
            rest = None if not part.get("stop_after_first") else ()
            again.append(f"{found} {self._tag(tag, rest, trigger)}")
            first.append(self._tag(tag, rest))
        more = self._one_of(again)
        if part.get("stop_after_first"):
            return self._one_of(first) if part.get("at_least_one") else f"({more} | TEXT)"
        return f"{self._one_of(first) if part.get('at_least_one') else ''} {more}* TEXT"

    def _separated(self, part: Part) -> str:
        tags = _some(part, "tags")
        for tag in tags:
            _checked(tag, "tag")
        one = self._one_of(self._tag(tag, None) for tag in tags)
        more = "" if part.get("stop_after_first") else f"({self._spell(_text(part, 'separator'))} {one})*"
        return f"({one} {more})" if part.get("at_least_one") else f"({one} {more})?"

    def _named(self, body: str, how: str = "") -> str:
        """A rule of this body."""
        name = f"rule_{len(self.rules)}"
        self.rules.append(f"{name}{how}: {body}")
        return name

    def _fixed(self, ends: Ends) -> str:
        return self._one_of(self._spell(end) for end in ends) if ends else ""

    @staticmethod
    def _one_of(choices: Any) -> str:
        return f"({' | '.join(choices)})"


def _checked(part: Part, default: str | None = None) -> str:
    """The type of a part that has the fields of it. Raises: ValueError."""
    if not isinstance(part, Mapping):
        raise TypeError(f"{part!r} is no part: it must be an object with a type")
    kind = part.get("type", default)
    if kind not in _FIELDS:
        raise ValueError(f"type {kind!r} is not served: take one of {', '.join(_FIELDS)}")
    needed, more = _FIELDS[kind]
    for name in sorted(needed - part.keys()):
        raise ValueError(f"{name} is missing in a part of type {kind}")
    for name in sorted(part.keys() - needed - more - {"type"}):
        raise ValueError(f"{name} is no field of a part of type {kind}, or not served")
    return str(kind)


def _some(part: Part, name: str) -> list[Any]:
    found = part[name]
    if not isinstance(found, list) or not found:
        raise ValueError(f"{name} must be a list that is not empty")
    return found


def _text(part: Part, name: str) -> str:
    found = part[name]
    if not isinstance(found, str):
        raise TypeError(f"{name} is {found!r}: it must be a text")
    return found
