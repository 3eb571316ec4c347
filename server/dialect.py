"""How a model talks: its chat template, and how it writes calls and reasoning. Decided once, when the server starts.

What the operator does not say is read off the template, and shown with who decided it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import ConfigError, RequestError
from core.model.chat_template import render, variables
from core.model.source import ModelSource
from server.reasoning import DEEPSEEK_R1, QWEN3, REASONING, ReasoningFormat, Start
from server.tools.format import ToolFormat
from server.tools.formats import FORMATS, format_of

TEMPLATE = "the chat template"
NONE = "none"


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the operator says of a dialect; None: it is read off the template.

    chat_template       Jinja that takes the place of the model's own
    tool_call_parser    a name of `server.tools.formats.FORMATS`
    reasoning_parser    a name of `server.reasoning.REASONING`, or "none"
    auto_tool_choice    the model may choose by itself to call a tool
    request_templates   requests may bring templates of their own
    """

    chat_template: str | None = None
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    auto_tool_choice: bool = True
    request_templates: bool = False


@dataclass(frozen=True)
class Dialect:
    """See the top of this file. `template` is None where the model has none and can only continue plain text."""

    model: str
    template: str | None
    special_tokens: dict[str, str]
    tools: ToolFormat
    reasoning: ReasoningFormat | None
    auto_tool_choice: bool
    request_templates: bool


def resolve(source: ModelSource, wishes: Wishes) -> tuple[Dialect, list[tuple[str, str, str]]]:
    """The dialect, and (what, value, decided by). Raises: ConfigError for a parser that is not known."""
    template = wishes.chat_template or source.chat_template
    tools = _named(FORMATS, wishes.tool_call_parser, "--tool-call-parser") or format_of(template)
    reasoning = _reasoning(source, template, wishes.reasoning_parser)
    rows = [
        (
            "tool_call_parser",
            tools.name,
            _decided_by(wishes.tool_call_parser, "--tool-call-parser", tools.open, template),
        ),
        (
            "reasoning_parser",
            reasoning.name if reasoning else NONE,
            _decided_by(wishes.reasoning_parser, "--reasoning-parser", QWEN3.begin, template),
        ),
    ]
    dialect = Dialect(
        source.name,
        template,
        dict(source.special_tokens),
        tools,
        reasoning,
        wishes.auto_tool_choice,
        wishes.request_templates,
    )
    return dialect, rows if template else []


def _decided_by(wish: str | None, flag: str, sign: str, template: str | None) -> str:
    if wish is not None:
        return flag
    return TEMPLATE if sign in (template or "") else f"no {sign} in {TEMPLATE}"


def read_template(path: str) -> str:
    """A chat template from a file. Raises: ConfigError when it cannot be read, or is none."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"--chat-template {path} cannot be read ({error}): give a file with Jinja source") from None
    try:
        variables(text)
    except RequestError as error:
        raise ConfigError(f"--chat-template {path}: {error}") from None
    return text


def _named(known: dict[str, Any], name: str | None, flag: str) -> Any:
    if name is not None and name not in known:
        raise ConfigError(f"{flag} is {name!r}: choose among {', '.join(known)}")
    return known.get(name or "")


def _reasoning(source: ModelSource, template: str | None, name: str | None) -> ReasoningFormat | None:
    if name is not None:
        found: ReasoningFormat | None = _named({**REASONING, NONE: None}, name, "--reasoning-parser")
        return found
    if template is None or QWEN3.begin not in template:
        return None
    try:
        prompt = render(template, [{"role": "user", "content": "Hi"}], special_tokens=source.special_tokens)
    except RequestError:
        return QWEN3
    return DEEPSEEK_R1 if QWEN3.start(prompt, template) is Start.INSIDE else QWEN3
