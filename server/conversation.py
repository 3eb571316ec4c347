"""What a client may send to /v1/chat/completions. Ranges are checked by core."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, GetJsonSchemaHandler, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema
from pydantic_core.core_schema import ValidationInfo

from server.neutral import NEUTRAL, NEUTRAL_IN_MESSAGE, Neutral
from server.schema import Body
from server.strict import Int, Strict
from server.tools.asked import Call, ToolFields

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


_ROLES_OF = {
    "tool_calls": "assistant",
    "reasoning": "assistant",
    "reasoning_content": "assistant",
    "parsed": "assistant",
    "name": "tool",
    "tool_call_id": "tool",
}
"""Fields of a message that only one role has."""


class TextPart(Strict):
    """Of a message whose content is a list."""

    type: Literal["text"]
    text: str


class Message(Strict):
    """One turn. `content` becomes plain text; `developer` is today's name for the system role.

    tool_calls     what an assistant called
    tool_call_id   which call a tool answers
    reasoning      an assistant's, under either name
    parsed         what OpenAI's client made of content: it sends that along
    """

    neutral: ClassVar[Neutral] = NEUTRAL_IN_MESSAGE
    neutral_prefix = "messages."

    role: str
    content: str | None = None
    name: str | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    parsed: Any = None

    @field_validator("role")
    @classmethod
    def _role(cls, value: str) -> str:
        if value not in ("system", "developer", "user", "assistant", "tool"):
            raise ValueError(f"is {value!r}: it must be system, developer, user, assistant or tool")
        return "system" if value == "developer" else value

    @field_validator("content", mode="before", json_schema_input_type=str | list[TextPart] | None)
    @classmethod
    def _content(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return "".join(_part_text(part) for part in value)

    @model_validator(mode="after")
    def _fields_of_the_role(self) -> "Message":
        for field, role in _ROLES_OF.items():
            if getattr(self, field) and self.role != role:
                raise ValueError(f"{field} is a field of {role} messages, and not of {self.role} ones; leave it out")
        if self.role == "tool" and not self.tool_call_id:
            raise ValueError("tool_call_id is missing: a tool message answers a call")
        if self.content is None and not self.tool_calls and not self.thoughts:
            raise ValueError("content is missing")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = super().__get_pydantic_json_schema__(core_schema, handler)
        fields = schema.pop("properties")
        needed_fields = ("content", "tool_calls", "tool_call_id")
        content, calls, call_id = ({**fields[name], "anyOf": fields[name]["anyOf"][:-1]} for name in needed_fields)
        calls["anyOf"][0]["minItems"] = call_id["anyOf"][0]["minLength"] = 1
        of_all = {name: each for name, each in fields.items() if name not in _ROLES_OF}
        of_assistants = {name: fields[name] for name, role in _ROLES_OF.items() if role == "assistant"}
        of_tools = {"name": fields["name"], "tool_call_id": call_id}
        variants = [
            ({**of_all, "role": {"enum": ["system", "developer", "user"]}, "content": content}, ["content"]),
            ({**of_all, **of_assistants, "role": {"const": "assistant"}, "content": content}, ["content"]),
            ({**of_all, **of_assistants, "role": {"const": "assistant"}, "tool_calls": calls}, ["tool_calls"]),
            ({**of_all, **of_tools, "role": {"const": "tool"}, "content": content}, ["content", "tool_call_id"]),
        ]
        closed = {"type": "object", "additionalProperties": False}
        return {
            "title": schema["title"],
            "anyOf": [{**closed, "properties": each, "required": ["role", *needed]} for each, needed in variants],
        }

    @property
    def thoughts(self) -> str:
        """The reasoning, under whichever name."""
        return self.reasoning_content or self.reasoning or ""


def _part_text(part: Any) -> str:
    if not isinstance(part, dict):
        raise ValueError('parts must be objects like {"type": "text", "text": ...}')
    if part.get("type") != "text":
        raise ValueError(f"a part of type {part.get('type')!r}: only text parts are served")
    text = part.get("text")
    if not isinstance(text, str) or part.keys() != {"type", "text"}:
        raise ValueError("a text part must hold type and text, a string, and nothing else")
    return text


class ChatBody(Body, ToolFields):
    """POST /v1/chat/completions.

    echo                    with continue_final_message: the answer starts with the message that it continues
    continue_final_message  the answer goes on where the last message, an assistant's, ends
    include_reasoning       false: reasoning is not shown
    separate_reasoning      false: it is shown as it was written, at the begin of the content
    thinking_token_budget   tokens of reasoning, after which its end is forced
    """

    neutral: ClassVar[Neutral] = NEUTRAL

    messages: list[Message]
    max_completion_tokens: Int | None = None
    logprobs: bool | None = None
    top_logprobs: Int | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[dict[str, Any]] | None = None
    echo: bool | None = None
    reasoning_effort: Effort | None = None
    include_reasoning: bool | None = None
    separate_reasoning: bool | None = None
    thinking_token_budget: Annotated[Int, Field(ge=0)] | None = None

    @field_validator("top_logprobs")
    @classmethod
    def _needs_logprobs(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value and not info.data.get("logprobs"):
            raise ValueError("is only allowed when logprobs is true")
        return value

    @field_validator("messages")
    @classmethod
    def _some(cls, value: list[Message]) -> list[Message]:
        if not value:
            raise ValueError("must hold at least one message")
        calls: set[str] = set()
        for message in value:
            calls |= {call.id for call in message.tool_calls or []}
            if message.role == "tool" and message.tool_call_id not in calls:
                raise ValueError(f"a tool message answers {message.tool_call_id!r}, which no message before it calls")
        return value

    @field_validator("continue_final_message")
    @classmethod
    def _something_to_continue(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        if value and info.data.get("add_generation_prompt"):
            raise ValueError("is true, and so is add_generation_prompt: only one of them can be")
        messages = info.data.get("messages")
        if value and messages and (messages[-1].role != "assistant" or not messages[-1].content):
            raise ValueError("the last message is to be continued: it must be an assistant's, with content")
        return value

    @field_validator("echo")
    @classmethod
    def _something_to_echo(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        if value and not info.data.get("continue_final_message"):
            raise ValueError("is true: in a chat it needs continue_final_message")
        return value

    @property
    def num_chars(self) -> int:
        """About how long the prompt is."""
        return sum(len(message.content or "") + len(message.thoughts) for message in self.messages)

    @property
    def sent_names(self) -> dict[str, str]:
        names = {"logprobs": "top_logprobs", "prompt": "messages", **super().sent_names}
        if self.tools:
            names = {"structured calls": "tools", "structured": "tools"} | names
        if self.max_completion_tokens is not None:
            names["max_tokens"] = "max_completion_tokens"
        return names

    @property
    def max_new_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None
