"""What a client may send to /v1/messages, and the chat that it means."""

import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from core.errors import RequestError
from server.conversation import ChatBody
from server.neutral import Neutral
from server.schema import in_terms_of
from server.strict import TEXT, Int, Strict, checked, of_kinds
from server.tools.asked import NAME, Name

_CACHE: Neutral = {"cache_control": ({"type": "ephemeral"}, {"type": "ephemeral", "ttl": "5m"})}
"""Prefixes are cached without being asked to, and for as long as there is room."""


class _Tool(Strict):
    neutral: ClassVar[Neutral] = _CACHE
    neutral_prefix = "tools."

    type: Literal["custom"] | None = None
    name: Name
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None


class _Choice(Strict):
    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _name_of_a_tool(self) -> "_Choice":
        if (self.name is not None) != (self.type == "tool"):
            raise ValueError(f"name is {'missing for' if self.name is None else 'no field of'} type {self.type}")
        return self


class _Thinking(Strict):
    """Whether to reason, and with `enabled` for how many tokens at most."""

    type: Literal["adaptive", "disabled", "enabled"]
    budget_tokens: Annotated[Int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _budget_of_enabled(self) -> "_Thinking":
        if (self.budget_tokens is None) == (self.type == "enabled"):
            raise ValueError(f"budget_tokens is {self.budget_tokens} for type {self.type}: only enabled has one")
        return self


class _Format(Strict):
    type: Literal["json_schema"]
    form: dict[str, Any] = Field(alias="schema")


class _OutputConfig(Strict):
    """The form that texts are to have."""

    neutral: ClassVar[Neutral] = {"effort": ()}
    neutral_prefix = "output_config."

    format: _Format | None = None


class _Metadata(Strict):
    user_id: str | None = None


_TEXT = {"text": TEXT}
_TextBlock = Annotated[dict[str, Any], of_kinds(text=_TEXT)]
_UserBlock = Annotated[dict[str, Any], of_kinds(text=_TEXT, tool_result={"tool_use_id": TEXT})]
_AssistantBlock = Annotated[
    dict[str, Any],
    of_kinds(text=_TEXT, thinking={"thinking": TEXT}, tool_use={"id": TEXT, "name": NAME, "input": {"type": "object"}}),
]


class _UserTurn(Strict):
    role: Literal["user"]
    content: str | list[_UserBlock]


class _AssistantTurn(Strict):
    role: Literal["assistant"]
    content: str | list[_AssistantBlock]


_Turn = Annotated[_UserTurn | _AssistantTurn, Field(discriminator="role")]


class PromptBody(Strict):
    """POST /v1/messages/count_tokens: what makes the prompt."""

    neutral: ClassVar[Neutral] = {**_CACHE, "mcp_servers": ([],)}

    model: str
    messages: Annotated[list[_Turn], Field(min_length=1)]
    system: str | list[_TextBlock] | None = None
    tools: list[_Tool] | None = None
    tool_choice: _Choice | None = None
    thinking: _Thinking | None = None
    output_config: _OutputConfig | None = None

    def chat(self, reasons: bool) -> ChatBody:
        """The same as a chat; `reasons`: the model reasons, unless told not to.

        Raises: RequestError naming a field of this body.
        """
        with in_terms_of(self.names):
            return checked({name: value for name, value in self._chat(reasons).items() if value is not None}, ChatBody)

    def _chat(self, reasons: bool) -> dict[str, Any]:
        system = [{"role": "system", "content": _text(self.system, "system")}] if self.system else []
        asked: dict[str, Any] = {"model": self.model, "messages": [*system, *_messages(self.messages)]}
        asked["continue_final_message"] = self.messages[-1].role == "assistant" or None
        if reasons and self.thinking is not None and self.thinking.type == "disabled":
            asked["reasoning_effort"] = "none"
        if self.thinking is not None:
            asked["thinking_token_budget"] = self.thinking.budget_tokens
        if self._form is not None:
            asked["response_format"] = {"type": "json_schema", "json_schema": {"schema": self._form}}
        if self.tools:
            asked["tools"] = [{"type": "function", "function": _function(tool)} for tool in self.tools]
        if self.tool_choice is not None:
            plain = {"auto": "auto", "any": "required", "none": "none"}
            named = {"type": "function", "function": {"name": self.tool_choice.name}}
            asked["tool_choice"] = plain.get(self.tool_choice.type, named)
            asked["parallel_tool_calls"] = not self.tool_choice.disable_parallel_tool_use
        return asked

    @property
    def names(self) -> dict[str, str]:
        """Names of chats and of core -> those of the fields here that are meant."""
        names = {
            "reasoning_effort": "thinking",
            "thinking_token_budget": "thinking",
            "parallel_tool_calls": "tool_choice",
            "continue_final_message": "messages",
            "response_format": "output_config",
            "function.parameters": "input_schema",
        }
        form = "tools" if self._form is None else "output_config"
        return {**names, "stop": "stop_sequences", "structured calls": "tools", "structured": form}

    @property
    def _form(self) -> dict[str, Any] | None:
        """The schema that texts are to be of."""
        return self.output_config.format.form if self.output_config and self.output_config.format else None


class MessageBody(PromptBody):
    """POST /v1/messages."""

    neutral: ClassVar[Neutral] = {
        **PromptBody.neutral,
        "container": (),
        "context_management": (),
        "inference_geo": (),
        "service_tier": ("auto", "standard_only"),
        "speed": ("standard",),
    }

    max_tokens: Int
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    stream: bool | None = None
    metadata: _Metadata | None = None

    def _chat(self, reasons: bool) -> dict[str, Any]:
        same = {name: getattr(self, name) for name in ("max_tokens", "temperature", "top_p", "top_k")}
        return {**super()._chat(reasons), **same, "stop": self.stop_sequences}


def _function(tool: _Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}


def _messages(turns: list[_Turn]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for turn in turns:
        if isinstance(turn.content, str):
            messages.append({"role": turn.role, "content": turn.content})
        else:
            messages += (_of_assistant if turn.role == "assistant" else _of_user)(turn.content)
    return messages


def _of_user(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results of tools come first: they answer the turn before."""
    results = [_result(block) for block in blocks if block.get("type") == "tool_result"]
    rest = [block for block in blocks if block.get("type") != "tool_result"]
    return [*results, *([{"role": "user", "content": _text(rest, "messages")}] if rest or not results else [])]


def _result(block: dict[str, Any]) -> dict[str, Any]:
    content = _text(block.get("content") or "", "messages")
    shown = f"Error: {content}" if block.get("is_error") else content
    return {"role": "tool", "tool_call_id": _of(block, "tool_use_id"), "content": shown}


def _of_assistant(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    message: dict[str, Any] = {"role": "assistant"}
    thoughts = [_of(block, "thinking") for block in blocks if block.get("type") == "thinking"]
    texts = [block for block in blocks if block.get("type") not in ("thinking", "tool_use")]
    if thoughts:
        message["reasoning"] = "".join(thoughts)
    if texts:
        message["content"] = _text(texts, "messages")
    calls = [block for block in blocks if block.get("type") == "tool_use"]
    if calls:
        message["tool_calls"] = [
            {
                "id": _of(call, "id"),
                "function": {"name": _of(call, "name"), "arguments": json.dumps(_of(call, "input"))},
            }
            for call in calls
        ]
    return [message]


def _of(block: dict[str, Any], name: str) -> Any:
    if name not in block:
        raise RequestError(f"messages has a {block.get('type')} block without {name}", "messages")
    return block[name]


def _text(content: Any, param: str) -> str:
    """The text of blocks. Raises: RequestError for anything else."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise RequestError(f"{param} has content that is neither text nor a list of blocks", param)
    for block in content:
        if block.get("type") != "text" or not isinstance(block.get("text"), str):
            raise RequestError(f"{param} has a block of type {block.get('type')!r}, which is not served here", param)
    return "".join(block["text"] for block in content)
