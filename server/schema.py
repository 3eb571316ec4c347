"""What a client may send: bodies of /v1/completions and /v1/chat/completions.

Every field takes effect or is refused by name. Fields of the OpenAI and vLLM APIs that are not served yet are
accepted with the one value that asks for nothing, and refused with any other. Ranges are checked by core.
"""

from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from core.errors import RequestError
from core.request import SamplingParams

MAX_BODY_BYTES = 32 * 1024 * 1024
MAX_PROMPTS = 256

Prompt = str | list[int]

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "include_reasoning": (True,),
    "include_stop_str_in_output": (False,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "metadata": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "parallel_tool_calls": (True,),
    "prediction": (),
    "presence_penalty": (0,),
    "prompt_cache_key": (),
    "prompt_logprobs": (),
    "reasoning_effort": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "safety_identifier": (),
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "store": (False,),
    "structured_outputs": (),
    "suffix": (),
    "tool_choice": ("none",),
    "tools": ([],),
    "top_logprobs": (0,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": (),
    "web_search_options": (),
}
"""Known fields without effect yet -> the values, besides null, that ask for no effect."""

NEUTRAL_IN_MESSAGE: dict[str, tuple[Any, ...]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "name": (),
    "reasoning": (),
    "reasoning_content": (),
    "refusal": (),
    "tool_calls": ([],),
}
"""The same for fields of a message: clients send whole answers back as history."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(_Strict):
    """What a stream reports besides text.

    include_usage            one last chunk with the token counts
    continuous_usage_stats   the counts so far in every chunk
    include_obfuscation      padding of chunks: not done, so only false is taken
    """

    include_usage: bool = False
    continuous_usage_stats: bool = False

    @model_validator(mode="before")
    @classmethod
    def _later(cls, value: Any) -> Any:
        return _without_neutral(value, {"include_obfuscation": (False,)}, "stream_options.")


class _Body(_Strict):
    """Fields that both endpoints share."""

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: list[str] = []
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: int | None = None
    cache_salt: str | None = None
    user: str | None = None

    @field_validator("stop", mode="before")
    @classmethod
    def _stop(cls, value: Any) -> Any:
        if value is None:
            return []
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _options_need_stream(self) -> "_Body":
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only allowed when stream is true")
        return self

    def sampling(self, max_tokens: int | None) -> SamplingParams:
        """The sampling asked for; what was left out is as OpenAI documents it."""
        return SamplingParams(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=self.top_k or 0,
            seed=self.seed,
            max_tokens=max_tokens,
            stop=tuple(self.stop),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
        )


class CompletionBody(_Body):
    """POST /v1/completions. `prompt` becomes a list: one choice for each."""

    prompt: list[Any]

    @field_validator("prompt", mode="before")
    @classmethod
    def _prompt(cls, value: Any) -> list[Prompt]:
        if isinstance(value, str) or _is_ids(value):
            return [value]
        if isinstance(value, list) and value and all(isinstance(p, str) or _is_ids(p) for p in value):
            if len(value) > MAX_PROMPTS:
                raise ValueError(f"{len(value)} prompts: at most {MAX_PROMPTS} in one request")
            return value
        raise ValueError("must be a string, a list of token ids, or a list of several of one kind; none of them empty")

    @property
    def max_new_tokens(self) -> int | None:
        return 16 if self.max_tokens is None else self.max_tokens


class Message(_Strict):
    """One turn. `content` becomes plain text; `developer` is today's name for the system role."""

    role: str
    content: str

    @model_validator(mode="before")
    @classmethod
    def _later(cls, value: Any) -> Any:
        return _without_neutral(value, NEUTRAL_IN_MESSAGE, "messages.")

    @field_validator("role")
    @classmethod
    def _role(cls, value: str) -> str:
        if value not in ("system", "developer", "user", "assistant"):
            raise ValueError(f"is {value!r}: it must be system, developer, user or assistant")
        return "system" if value == "developer" else value

    @field_validator("content", mode="before")
    @classmethod
    def _content(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return "".join(_part_text(part) for part in value)


class ChatBody(_Body):
    """POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None

    @field_validator("messages")
    @classmethod
    def _some(cls, value: list[Message]) -> list[Message]:
        if not value:
            raise ValueError("must hold at least one message")
        return value

    @property
    def max_new_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


BodyT = TypeVar("BodyT", bound=_Body)


def parse(raw: bytes, kind: type[BodyT]) -> BodyT:
    """The checked body. Raises: RequestError naming the field at fault."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise RequestError("the body must be a JSON object")
    try:
        return kind.model_validate(_without_neutral(value, NEUTRAL))
    except ValidationError as error:
        raise _as_request_error(error) from None


def _without_neutral(value: Any, table: dict[str, tuple[Any, ...]], prefix: str = "") -> Any:
    """`value` without those fields of `table` that ask for nothing. Raises: RequestError for one that asks."""
    if not isinstance(value, dict):
        return value
    kept = {}
    for name, asked in value.items():
        if name not in table:
            kept[name] = asked
        elif not (asked is None or any(_same(asked, neutral) for neutral in table[name])):
            allowed = " or ".join(msgspec.json.encode(v).decode() for v in (*table[name], None))
            shown = msgspec.json.encode(asked).decode()
            shown = shown if len(shown) <= 60 else f"{shown[:60]}..."
            message = f"{prefix}{name} is {shown}: this release takes only {allowed}; leave it out"
            raise RequestError(message, (prefix + name).partition(".")[0])
    return kept


def _same(asked: Any, neutral: Any) -> bool:
    """Equality in JSON, where 1 and 1.0 are the same, and 1 and true are not."""
    return isinstance(asked, bool) == isinstance(neutral, bool) and bool(asked == neutral)


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(i) is int for i in value)


def _part_text(part: Any) -> str:
    if not isinstance(part, dict):
        raise ValueError('parts must be objects like {"type": "text", "text": ...}')
    if part.get("type") != "text":
        raise ValueError(f"a part of type {part.get('type')!r}: only text parts are served")
    text = part.get("text")
    if not isinstance(text, str) or part.keys() != {"type", "text"}:
        raise ValueError("a text part must hold type and text, a string, and nothing else")
    return text


def _as_request_error(error: ValidationError) -> RequestError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = ".".join(str(part) for part in first["loc"])
    param = str(first["loc"][0]) if first["loc"] else None
    if first["type"] == "extra_forbidden":
        return RequestError(f"{path} is not a field of this request; leave it out", param)
    if first["type"] == "missing":
        return RequestError(f"{path} is missing", param)
    reason = first["msg"].removeprefix("Value error, ")
    return RequestError(f"{path}: {reason}" if path else reason, param)
