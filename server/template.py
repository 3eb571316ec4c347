"""From a checked chat to the text of its prompt.

Whatever a chat gives to its template must have an effect there: what the template does not look at is refused by name.
Tools are the exception: for a template that knows none they are described in the system message, with the format that
the server reads calls in; and where it knows no calls, those of earlier turns and their answers are written as text.
"""

import json
from dataclasses import replace
from typing import Any, NamedTuple

from core.errors import RequestError
from core.model.chat_template import render, variables
from server.conversation import ChatBody, Message
from server.dialect import Dialect
from server.reader import Parsers
from server.tools.asked import Function

_OWN_FIELDS = ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "reasoning_effort")
_OWN_NAMES = ("template", "special_tokens")
"""Of what `render` takes beside a template's variables."""

_TOOL_NAMES = ("tools", "xml_tools")
"""Names under which templates look for tools."""


class Prompt(NamedTuple):
    """A prompt, and what to look for in what follows it."""

    text: str
    parsers: Parsers


def prompt_of(body: ChatBody, dialect: Dialect) -> Prompt:
    """Raises: RequestError for what the template cannot render, or would ignore."""
    template = _template(body, dialect)
    names = variables(template)
    calls = body.choice != "none"
    messages = [_for_template(message, dialect) for message in body.messages]
    tools_name = next((name for name in _TOOL_NAMES if name in names), None)
    if "tool_calls" not in template:
        messages = _without_calls(messages, dialect)
    if calls and tools_name is None:
        messages = _with_instructions(messages, body.callable, dialect)
    shown: dict[str, Any] = {**_variables(body, names), **_documents(body, names)}
    if calls and tools_name is not None:
        shown[tools_name] = [tool.model_dump(exclude_none=True) for tool in body.tools or []]
    _check_reasoning(body, template, dialect)
    text = render(
        template,
        messages,
        add_generation_prompt=not body.continue_final_message and body.add_generation_prompt is not False,
        special_tokens=dialect.special_tokens,
        **shown,
    )
    if body.continue_final_message:
        text = _up_to_the_end(text, messages[-1]["content"])
    return Prompt(text, _parsers(body, dialect, text, template, calls))


def _parsers(body: ChatBody, dialect: Dialect, text: str, template: str, calls: bool) -> Parsers:
    found = Parsers(tools=dialect.tools if calls else None, beside_form=body.form is not None)
    if dialect.reasoning is None:
        return found
    if body.continue_final_message:
        start = dialect.reasoning.inside_of(body.messages[-1].content or "")
    else:
        start = dialect.reasoning.start(text, template)
    together = body.separate_reasoning is False and body.include_reasoning is not False
    return replace(found, reasoning=dialect.reasoning, start=start, together=together)


def _template(body: ChatBody, dialect: Dialect) -> str:
    if body.chat_template is not None and not dialect.request_templates:
        raise RequestError(
            "chat_template: this server takes no templates of requests (--trust-request-chat-template); leave it out",
            "chat_template",
        )
    template = body.chat_template or dialect.template
    if template is None:
        raise RequestError(f"{dialect.model} has no chat template; use /v1/completions", "messages")
    return template


def _variables(body: ChatBody, names: frozenset[str]) -> dict[str, Any]:
    """What the client gives to the template by name."""
    shown = dict(body.chat_template_kwargs or {})
    for name in shown:
        if name in _OWN_FIELDS or name in _OWN_NAMES:
            raise RequestError(
                f"chat_template_kwargs has {name}, which only the server sets (or a field of that name); leave it out",
                "chat_template_kwargs",
            )
        _check_known(name, names, "chat_template_kwargs")
    effort = body.reasoning_effort
    if effort is None:
        return shown
    if "reasoning_effort" in names:
        return {**shown, "reasoning_effort": effort}
    if "enable_thinking" in names and effort == "none":
        return {**shown, "enable_thinking": False}
    raise RequestError(
        f"reasoning_effort is {effort!r}: this model's template knows no effort"
        + (", only 'none'; leave it out" if "enable_thinking" in names else "; leave it out"),
        "reasoning_effort",
    )


def _documents(body: ChatBody, names: frozenset[str]) -> dict[str, Any]:
    if not body.documents:
        return {}
    _check_known("documents", names, "documents")
    return {"documents": body.documents}


def _check_known(name: str, names: frozenset[str], param: str) -> None:
    if name not in names:
        known = ", ".join(sorted(names - {*_OWN_FIELDS, *_TOOL_NAMES})) or "none"
        raise RequestError(
            f"{param}: the chat template does not look at {name[:60]}; leave it out (it looks at {known})", param
        )


def _check_reasoning(body: ChatBody, template: str, dialect: Dialect) -> None:
    has_reasoning = any(message.thoughts for message in body.messages)
    if has_reasoning and dialect.reasoning is None and "reasoning_content" not in template:
        raise RequestError(
            "messages: this model's template renders no reasoning; leave reasoning and reasoning_content out",
            "messages",
        )


def _for_template(message: Message, dialect: Dialect) -> dict[str, Any]:
    """A message as templates take it: content is never null, and arguments are an object."""
    shown: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if message.thoughts:
        shown["reasoning_content"] = message.thoughts
    if message.tool_call_id:
        shown["tool_call_id"] = message.tool_call_id
    if message.name:
        shown["name"] = message.name
    if message.tool_calls:
        shown["tool_calls"] = [call.model_dump() for call in message.tool_calls]
        for call in shown["tool_calls"]:
            if not dialect.tools.arguments_as_text:
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return shown


def _without_calls(messages: list[dict[str, Any]], dialect: Dialect) -> list[dict[str, Any]]:
    """Messages for a template that knows no calls and no answers of tools."""
    plain: list[dict[str, Any]] = []
    answers: list[str] = []
    for message in [*messages, {"role": ""}]:
        if message["role"] == "tool":
            answers.append(f"<tool_response>\n{message['content']}\n</tool_response>")
            continue
        if answers:
            plain.append({"role": "user", "content": "\n".join(answers)})
            answers = []
        if calls := message.pop("tool_calls", None):
            written = dialect.tools.write((c["function"]["name"], _text(c["function"]["arguments"])) for c in calls)
            message["content"] = f"{message['content']}\n{written}".lstrip("\n")
        plain.append(message)
    return plain[:-1]


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _with_instructions(
    messages: list[dict[str, Any]], functions: list[Function], dialect: Dialect
) -> list[dict[str, Any]]:
    """The tools and how to call them, at the end of the system message."""
    tools = "\n".join(json.dumps(each.model_dump(exclude_none=True), ensure_ascii=False) for each in functions)
    example = dialect.tools.write([("NAME", "ARGUMENTS")])
    text = (
        f"You may call these functions, of which the parameters are JSON schemas:\n<tools>\n{tools}\n</tools>\n\n"
        f"To call one, write its name and its arguments, a JSON object, like this:\n{example}"
    )
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": text}, *messages]
    system = {**messages[0], "content": f"{messages[0]['content']}\n\n{text}".lstrip("\n")}
    return [system, *messages[1:]]


def _up_to_the_end(text: str, content: str) -> str:
    """The prompt up to the end of the last message's content. Templates may take whitespace around it away."""
    for end in (content, content.rstrip(), content.strip()):
        at = text.rfind(end)
        if end and at >= 0:
            return text[: at + len(end)]
    raise RequestError(
        "continue_final_message: the chat template does not render the last message as it is; leave it out",
        "continue_final_message",
    )
