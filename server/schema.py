"""What a client may send: bodies of /v1/completions and /v1/chat/completions.

Every field takes effect or is refused by name; null asks for nothing. `neutral.py` holds the fields without effect
yet. Ranges are checked by core.
"""

import re
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, field_validator, model_validator
from pydantic_core.core_schema import ValidationInfo

from core.errors import RequestError
from core.request import SamplingParams
from server.neutral import NEUTRAL, NEUTRAL_IN_CHAT, NEUTRAL_IN_COMPLETION, NEUTRAL_IN_MESSAGE, without_neutral

MAX_BODY_BYTES = 32 * 1024 * 1024
MAX_PROMPTS = 256

OPENAI_MAX_TOKENS = 16
"""Of a completion, where nobody set a limit; a conversation may fill the context."""

Prompt = str | list[int]

_ID = re.compile(r"-?(0|[1-9][0-9]{0,17})")


def _ids_as_keys(value: Any) -> Any:
    """JSON has only strings as keys: "17" becomes the id 17."""
    if not isinstance(value, dict):
        return value
    for key in value:
        if not _ID.fullmatch(key):
            raise ValueError(f'{key!r} is not a token id: keys must be integers such as "17"')
    return {int(key): bias for key, bias in value.items()}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {}
    neutral_prefix: ClassVar[str] = ""

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, value: Any) -> Any:
        return without_neutral(value, cls.neutral, cls.neutral_prefix)


class StreamOptions(_Strict):
    """What a stream reports besides text.

    include_usage            one last chunk with the token counts
    continuous_usage_stats   the counts so far in every chunk
    include_obfuscation      padding of chunks: not done, so only false is taken
    """

    neutral = {"include_obfuscation": (False,)}
    neutral_prefix = "stream_options."

    include_usage: bool = False
    continuous_usage_stats: bool = False


class _Body(_Strict):
    """Fields that both endpoints share."""

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Annotated[dict[int, float] | None, BeforeValidator(_ids_as_keys)] = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    n: int | None = None
    seed: int | None = None
    min_tokens: int | None = None
    stop: list[str] = []
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    prompt_logprobs: int | None = None
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

    @property
    def max_new_tokens(self) -> int | None:
        """The limit that the client gave."""
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """Likeliest tokens to report beside each token; None: no report."""
        raise NotImplementedError

    def sampling(self, defaults: SamplingParams) -> SamplingParams:
        """The sampling asked for; what was left out is as in `defaults`."""
        fields = {name: getattr(self, name) for name in _SAMPLING_FIELDS}
        sequences = {name: tuple(getattr(self, name) or ()) for name in _SAMPLING_SEQUENCES}
        fields |= {"max_tokens": self.max_new_tokens, "logprobs": self.num_logprobs}
        asked = {name: value for name, value in fields.items() if value is not None}
        return msgspec.structs.replace(defaults, **asked, **sequences)


_SAMPLING_FIELDS = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"),
    *("logit_bias", "n", "seed", "min_tokens", "ignore_eos", "prompt_logprobs"),
)
"""Fields that have one name in bodies and in `SamplingParams`."""

_SAMPLING_SEQUENCES = ("stop", "stop_token_ids", "bad_words", "allowed_token_ids")


class CompletionBody(_Body):
    """POST /v1/completions. `prompt` becomes a list: n choices for each.

    echo   the text starts with the prompt, and log-probabilities with the prompt's
    """

    neutral = NEUTRAL | NEUTRAL_IN_COMPLETION

    prompt: list[Any]
    echo: bool | None = None
    logprobs: int | None = None

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
    def prompt_only(self) -> bool:
        """Nothing is to be generated: the prompt comes back, with its log-probabilities where asked for."""
        return bool(self.echo) and self.max_tokens == 0

    @property
    def max_new_tokens(self) -> int | None:
        # The engine draws at least one token; `Generation` drops it.
        return 1 if self.prompt_only else self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    def sampling(self, defaults: SamplingParams) -> SamplingParams:
        sampling = super().sampling(defaults)
        if sampling.max_tokens is None:
            sampling = msgspec.structs.replace(sampling, max_tokens=OPENAI_MAX_TOKENS)
        if self.echo and self.logprobs is not None:
            most = max(self.logprobs, self.prompt_logprobs or 0)
            sampling = msgspec.structs.replace(sampling, prompt_logprobs=most)
        return sampling


class Message(_Strict):
    """One turn. `content` becomes plain text; `developer` is today's name for the system role."""

    neutral = NEUTRAL_IN_MESSAGE
    neutral_prefix = "messages."

    role: str
    content: str

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

    neutral = NEUTRAL | NEUTRAL_IN_CHAT

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

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
        return value

    @property
    def max_new_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


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
        return kind.model_validate(value)
    except ValidationError as error:
        raise _as_request_error(error) from None


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
