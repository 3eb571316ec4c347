"""What a client may send to /v1/responses, and the chat that it means."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from core.errors import RequestError
from server.conversation import ChatBody, Effort
from server.neutral import Neutral
from server.schema import in_terms_of
from server.strict import TEXT, Int, Strict, checked, of_kinds
from server.tools.asked import NAME, Choice, Name

Turns = list[dict[str, Any]]

_REASONING = {
    "type": "object",
    "properties": {"type": {"const": "reasoning_text"}, "text": {**TEXT, "minLength": 1}},
    "required": ["type", "text"],
}
Item = Annotated[
    dict[str, Any],
    of_kinds(
        message={"role": {"enum": ["system", "developer", "user", "assistant"]}, "content": TEXT},
        function_call={"call_id": TEXT, "name": NAME, "arguments": {**TEXT, "format": "json-object"}},
        function_call_output={"call_id": TEXT, "output": TEXT},
        reasoning={"content": {"type": "array", "items": _REASONING, "minItems": 1}},
    ),
]

_CHAT_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text",
    "function.parameters": "parameters",
    "reasoning_effort": "reasoning",
}
"""Fields of a chat -> those of a response that they are made from."""

_SAME = (
    *("model", "temperature", "top_p", "parallel_tool_calls", "seed", "top_k", "priority", "cache_salt"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "stop", "ignore_eos", "chat_template_kwargs"),
)


class _Tool(Strict):
    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Named(Strict):
    type: Literal["function"]
    name: Name


class _TextOptions(Strict):
    neutral: ClassVar[Neutral] = {"verbosity": ()}
    neutral_prefix = "text."

    format: dict[str, Any] | None = None


class _ReasoningOptions(Strict):
    neutral: ClassVar[Neutral] = {"summary": (), "generate_summary": ()}
    neutral_prefix = "reasoning."

    effort: Effort | None = None


class _StreamOptions(Strict):
    neutral: ClassVar[Neutral] = {"include_obfuscation": (False,)}
    neutral_prefix = "stream_options."


class ResponseBody(Strict):
    """POST /v1/responses.

    background             answer at once, and generate on: GET tells how far it is
    store                  keep it for GET and previous_response_id; that is so unless the client says otherwise
    previous_response_id   the input follows that response and what it answered
    """

    neutral: ClassVar[Neutral] = {
        "context_management": (),
        "conversation": (),
        "include": ([],),
        "max_tool_calls": (),
        "prompt": (),
        "prompt_cache_key": (),
        "prompt_cache_retention": (),
        "safety_identifier": (),
        "service_tier": ("auto", "default"),
        "top_logprobs": (0,),
        "truncation": ("disabled",),
    }

    model: str
    input: str | list[Item]
    instructions: str | None = None
    max_output_tokens: Int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    seed: Int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    tools: list[_Tool] | None = None
    tool_choice: Choice | _Named | None = None
    parallel_tool_calls: bool | None = None
    text: _TextOptions | None = None
    reasoning: _ReasoningOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    metadata: Annotated[dict[str, str] | None, Field(max_length=16)] = None
    priority: Int | None = None
    cache_salt: str | None = None
    user: str | None = None

    @model_validator(mode="after")
    def _background_is_kept(self) -> "ResponseBody":
        if self.background and (self.stream or self.store is False):
            raise ValueError("background needs store, and no stream: its answer is fetched later")
        return self

    def chat(self, earlier: Turns) -> ChatBody:
        """The same as a chat, after these turns. Raises: RequestError naming a field of this body."""
        asked: dict[str, Any] = {name: getattr(self, name) for name in _SAME}
        asked["messages"] = [*self.system, *earlier, *turns_of(self.input)]
        asked["max_tokens"] = self.max_output_tokens
        if self.tools:
            asked["tools"] = [
                {"type": "function", "function": tool.model_dump(exclude={"type"})} for tool in self.tools
            ]
        choice = self.tool_choice
        asked["tool_choice"] = (
            {"type": "function", "function": {"name": choice.name}} if isinstance(choice, _Named) else choice
        )
        if self.text and self.text.format:
            asked["response_format"] = _chat_format(self.text.format)
        asked["reasoning_effort"] = self.reasoning.effort if self.reasoning else None
        with in_terms_of(_CHAT_NAMES):
            return checked({name: value for name, value in asked.items() if value is not None}, ChatBody)

    @property
    def system(self) -> Turns:
        return [{"role": "system", "content": self.instructions}] if self.instructions else []

    @property
    def names(self) -> dict[str, str]:
        """Names of chats and of core -> those of the fields here that are meant."""
        has_form = self.text is not None and self.text.format is not None
        form = {"structured calls": "tools", "structured": "text" if has_form or not self.tools else "tools"}
        return {**_CHAT_NAMES, **form}


def _chat_format(asked: dict[str, Any]) -> dict[str, Any]:
    """The format of a response, as that of a chat, which has the schema in an object of its own."""
    if asked.get("type") != "json_schema":
        return asked
    return {"type": "json_schema", "json_schema": {name: value for name, value in asked.items() if name != "type"}}


def turns_of(asked: str | list[dict[str, Any]]) -> Turns:
    """Messages of a chat. What an assistant reasoned, said and called in a row is one of them."""
    if isinstance(asked, str):
        return [{"role": "user", "content": asked}]
    turns: Turns = []
    for item in asked:
        _add(turns, {name: value for name, value in item.items() if value is not None})
    if not turns:
        raise RequestError("input must hold at least one item", "input")
    return turns


_PARTS = ("input_text", "output_text", "text", "reasoning_text")


def _add(turns: Turns, item: dict[str, Any]) -> None:
    kind = item.get("type", "message")
    try:
        match kind:
            case "message" if item["role"] == "assistant":
                _assistant(turns, "content")["content"] = _text(item["content"])
            case "message":
                turns.append({"role": item["role"], "content": _text(item["content"])})
            case "reasoning":
                _assistant(turns, "reasoning")["reasoning"] = _text(item.get("content", []))
            case "function_call":
                function = {"name": item["name"], "arguments": item["arguments"]}
                calls = _assistant(turns).setdefault("tool_calls", [])
                calls.append({"id": item["call_id"], "type": "function", "function": function})
            case "function_call_output":
                turns.append({"role": "tool", "tool_call_id": item["call_id"], "content": _text(item["output"])})
            case _:
                raise RequestError(
                    f"input has an item of type {kind!r}: only message, reasoning, function_call and "
                    "function_call_output are served",
                    "input",
                )
    except KeyError as error:
        raise RequestError(f"input has a {kind} without {error.args[0]}", "input") from None


def _assistant(turns: Turns, but: str = "tool_calls") -> dict[str, Any]:
    """The assistant's turn that goes on, or a new one: what comes before `but` comes before all of it."""
    order = ("reasoning", "content", "tool_calls")
    last = turns[-1] if turns else {}
    if last.get("role") == "assistant" and (but == "tool_calls" or not last.keys() & order[order.index(but) :]):
        return last
    turns.append({"role": "assistant"})
    return turns[-1]


def _text(content: Any) -> Any:
    """Text, where parts are text; anything else is left for the chat to refuse."""
    if not isinstance(content, list):
        return content
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in _PARTS or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else part
            raise RequestError(f"input has content of type {kind!r}: only text is served", "input")
    return "".join(part["text"] for part in content)
