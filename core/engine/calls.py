"""The grammar of outputs that call functions, for llguidance.

A format of calls is data (see `core.request.Structured`), so that core knows none of them. Tokens that are special to
the model are no text for a grammar: where a format writes one, the grammar names its id.

Source: https://github.com/guidance-ai/llguidance, docs/syntax.md, "Tool calling".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

Spell = Callable[[str], str]

TEXT = "(?s:.*)"


def calls_grammar(spec: Mapping[str, Any], special: Mapping[str, int], options: Mapping[str, Any]) -> str:
    """Lark for what `spec` allows. Where it has a form, that is another grammar, named `form`.

    special   the special tokens, and their ids
    options   for llguidance's JSON schemas
    """
    spell = speller(special)
    begins = " | ".join(spell(each) or '""' for each in spec["begins"])
    lines = ["%llguidance {}", f"begin: {begins}"]
    names = []
    for number, function in enumerate(spec["functions"]):
        head = spell(spec["head"] + function["name"] + spec["middle"])
        schema = json.dumps({**function["schema"], "x-guidance": dict(options)})
        lines += [f"call_{number}: {head} args_{number} {spell(spec['close'])}", f"args_{number}: %json {schema}"]
        names.append(f"call_{number}")
    lines.append(f"call: {' | '.join(names)}")
    rules = _enclosed if spec["open"] else _bare
    return "\n".join([*lines, *rules(spec, spell), ""])


def _enclosed(spec: Mapping[str, Any], spell: Spell) -> list[str]:
    """Calls are marked: text comes before them, and between those that have marks of their own. Beside a form there is
    no text."""
    opened, end = spell(spec["open"]), spell(spec["end"])
    own = spec["separator"] is None
    more = "" if own or not spec["parallel"] else f"({spell(spec['separator'])} call)*"
    body = f"begin call {more} {end}"
    if spec["required"] or spec["form"]:
        again = f'("\\n" {opened} {body})*' if own and spec["parallel"] else ""
        start = "start: calls" if spec["required"] else "start: calls | @form"
        return [start, f"calls: {opened} {body} {again}"]
    is_text = opened.startswith('"')
    trigger = [f"trigger[lazy]: TEXT {opened}"] if is_text else [f"trigger: TEXT {opened}"]
    start = "start: called* tail" if own and spec["parallel"] else "start: called | tail"
    return [start, "tail: TEXT", f"called: trigger {body}", *trigger, f"TEXT: /{TEXT}/"]


def _bare(spec: Mapping[str, Any], spell: Spell) -> list[str]:
    """An output is either calls or text. Text does not begin like a call, whatever its whitespace."""
    more = f"({spell(spec['separator'])} call)*" if spec["parallel"] else ""
    if spec["required"]:
        return [f"start: begin call {more} {spell(spec['end'])}"]
    head = r"\s*".join(re.escape(part).replace("/", r"\/") for part in re.findall(r"\w+|[^\w\s]", spec["head"]))
    text = f"TEXT: /{TEXT}/ & ~/\\s*{head}{TEXT}/"
    return ["start: calls | TEXT", f"calls: begin call {more} {spell(spec['end'])}", text]


def speller(special: Mapping[str, int]) -> Spell:
    """Text as Lark writes it: strings, and ids for special tokens in it."""
    cut = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or r"(?!)")

    def spell(text: str) -> str:
        parts, at = [], 0
        for found in cut.finditer(text):
            parts += [json.dumps(text[at : found.start()]), f"<[{special[found[0]]}]>"]
            at = found.end()
        parts.append(json.dumps(text[at:]))
        return " ".join(part for part in parts if part != '""')

    return spell
