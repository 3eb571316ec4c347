"""Renders a conversation to text with the template that came with a model.

Templates are Jinja with the additions that published templates rely on. They come from strangers, so they run in a
sandbox: no attribute of Python's internals, no change of what they are given. What they see is plain JSON data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.meta
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from core.errors import RequestError

# What a template may raise on messages that it was not written for.
_RENDER_ERRORS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


class _Generation(Extension):
    """`{% generation %}` marks what an assistant said, for training; here it only passes its body on."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own protocol

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(jinja2.utils.Namespace):
    """Jinja's own takes any name, also those through which Python looks up how to treat an object."""

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        attributes = dict(*args, **kwargs)
        for name in attributes:
            _check_name(name)
        super().__init__(attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: str) -> None:
    if name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"the name {name!r} begins with an underscore")


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    """A function: the class has methods that templates need not reach."""
    return dict(*args, **kwargs)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own escapes for HTML, which models were not trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["namespace"] = _Namespace
    environment.globals["dict"] = _dict
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


@lru_cache(maxsize=32)
def _compile(template: str) -> jinja2.Template:
    return _environment().from_string(template)


@lru_cache(maxsize=32)
def variables(template: str) -> frozenset[str]:
    """Names that a template looks up, such as tools or enable_thinking: what else it is given has no effect.

    Raises: RequestError when the template is wrong.
    """
    environment = _environment()
    try:
        found = jinja2.meta.find_undeclared_variables(environment.parse(template))
    except jinja2.TemplateError as error:
        raise RequestError(f"the chat template is wrong: {error}", "chat_template") from error
    return frozenset(found - environment.globals.keys())


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    add_generation_prompt: bool = True,
    special_tokens: Mapping[str, str] | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **variables: Any,
) -> str:
    """The prompt for a conversation. It holds its own special tokens: encode it with add_special_tokens=False.

    messages               OpenAI's, as plain JSON data; fields that are None are left out
    add_generation_prompt  end with the begin of an assistant's turn
    special_tokens         bos_token, eos_token and so on, as text
    tools                  JSON schemas, or None
    variables              more names the template may know, such as enable_thinking

    Raises: RequestError when the template is wrong or refuses the messages, with its reason.
    """
    try:
        data = {
            "messages": [_normalised(message) for message in messages],
            "tools": tools,
            "documents": None,
            **variables,
        }
        plain = json.loads(json.dumps(data))
        return _compile(template).render(
            **{**(special_tokens or {}), **plain}, add_generation_prompt=add_generation_prompt
        )
    except _RENDER_ERRORS as error:
        raise RequestError(f"the chat template cannot render these messages: {error}", "messages") from error


def _normalised(message: Mapping[str, Any]) -> dict[str, Any]:
    """Templates find reasoning under any of its names, and no field that is None."""
    out = {key: value for key, value in message.items() if value is not None}
    reasoning = next((out[field] for field in _REASONING_FIELDS if field in out), None)
    if reasoning is not None:
        out = {"thinking": reasoning, **out, "reasoning_content": reasoning}
    return out
