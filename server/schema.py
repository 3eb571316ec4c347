"""What a client may send: fields of both endpoints, and the body of /v1/completions. For chats see `conversation`.

Every field takes effect or is refused by name; null asks for nothing. `neutral.py` holds the fields without effect
yet. Ranges are checked by core.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_core.core_schema import ValidationInfo

from core.errors import RequestError
from core.request import SamplingParams
from server.form import FormFields
from server.neutral import NEUTRAL, NEUTRAL_IN_COMPLETION, Neutral, shown
from server.strict import Int, Strict, whole

MAX_PROMPTS = 256

OPENAI_MAX_TOKENS = 16
"""Of a completion, where nobody set a limit; a conversation may fill the context."""

Prompt = str | list[int]

Text = Annotated[str, Field(min_length=1)]
Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
_SEVERAL = Field(min_length=1, max_length=MAX_PROMPTS)
Prompts = Annotated[list[Text], _SEVERAL] | Annotated[list[Ids], _SEVERAL]
BiasById = dict[Annotated[str, Field(pattern="^(0|[1-9][0-9]{0,17})$")], Annotated[float, Field(ge=-100, le=100)]]
"""What clients may send, where it is not what bodies hold."""

_ID = re.compile(r"-?(0|[1-9][0-9]{0,17})")


def _ids_as_keys(value: Any) -> Any:
    """JSON has only strings as keys: "17" becomes the id 17."""
    if not isinstance(value, dict):
        return value
    for key in value:
        if not _ID.fullmatch(key):
            raise ValueError(f'{key!r} is not a token id: keys must be integers such as "17"')
    return {int(key): bias for key, bias in value.items()}


class StreamOptions(Strict):
    """What a stream reports besides text.

    include_usage            one last chunk with the token counts
    continuous_usage_stats   the counts so far in every chunk
    include_obfuscation      padding of chunks: not done, so only false is taken
    """

    neutral: ClassVar[Neutral] = {"include_obfuscation": (False,)}
    neutral_prefix = "stream_options."

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Body(FormFields):
    """Fields that both endpoints share."""

    model: str
    max_tokens: Int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Annotated[
        dict[int, float] | None, BeforeValidator(_ids_as_keys, json_schema_input_type=BiasById | None)
    ] = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[Int] | None = None
    n: Int | None = None
    seed: Int | None = None
    min_tokens: Int | None = None
    stop: Annotated[list[str], Field(default_factory=list)]
    stop_token_ids: list[Int] | None = None
    ignore_eos: bool | None = None
    logprob_token_ids: list[Int] | None = None
    prompt_logprobs: Int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: Int | None = None
    cache_salt: str | None = None
    user: str | None = None
    include_stop_str_in_output: bool | None = None
    no_stop_trim: bool | None = None  # SGLang's name of the same
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Int | None = None
    truncation_side: Literal["left", "right"] | None = None
    request_id: Annotated[str, Field(pattern="^[!-~]{1,256}$")] | None = None
    stream_interval: Annotated[Int, Field(ge=1)] | None = None

    @field_validator("stop", mode="before", json_schema_input_type=str | list[str] | None)
    @classmethod
    def _stop(cls, value: Any) -> Any:
        if value is None:
            return []
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _options_need_stream(self) -> "Body":
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only allowed when stream is true")
        return self

    @model_validator(mode="after")
    def _named_logprobs_need_logprobs(self) -> "Body":
        if self.logprob_token_ids and self.num_logprobs is None:
            raise RequestError(
                f"logprob_token_ids is {self.logprob_token_ids}: it needs logprobs; ask for them, or leave it out",
                "logprob_token_ids",
            )
        return self

    @field_validator("stream_interval")
    @classmethod
    def _interval_needs_stream(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and not info.data.get("stream"):
            raise ValueError("is only allowed when stream is true")
        return value

    @field_validator("spaces_between_special_tokens")
    @classmethod
    def _no_spaces(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        if value and info.data.get("skip_special_tokens") is False:
            raise ValueError("is true: special tokens are written without spaces around them; leave it out")
        return value

    @field_validator("truncate_prompt_tokens")
    @classmethod
    def _some_tokens(cls, value: int | None) -> int | None:
        if value is not None and value < 1 and value != -1:
            raise ValueError(f"is {value}: it must be at least 1, or -1 for as many as have room")
        return value

    @field_validator("truncation_side")
    @classmethod
    def _needs_truncation(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("truncate_prompt_tokens") is None:
            raise ValueError("is only allowed with truncate_prompt_tokens")
        return value

    def truncated(self, ids: list[int], max_model_len: int) -> list[int]:
        """The part of a prompt that is asked for: its last tokens, or with truncation_side "right" its first.

        Raises: RequestError when more is asked for than the model takes.
        """
        most = self.truncate_prompt_tokens
        if most is None:
            return ids
        room = max_model_len - (self.max_new_tokens or 1)
        if most > max_model_len:
            raise RequestError(
                f"truncate_prompt_tokens is {most}: the model takes at most {max_model_len}", "truncate_prompt_tokens"
            )
        most = max(1, room) if most == -1 else most
        return ids[:most] if self.truncation_side == "right" else ids[-most:]

    @property
    def max_new_tokens(self) -> int | None:
        """The limit that the client gave."""
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """Likeliest tokens to report beside each token; None: no report."""
        raise NotImplementedError

    @property
    def shows_stops(self) -> bool:
        """Whether what stops an output is part of its text."""
        return bool(self.include_stop_str_in_output or self.no_stop_trim)

    @property
    def sent_names(self) -> dict[str, str]:
        """Names of core -> names of the fields that the client sent."""
        return {"structured": self.form.field} if self.form else {}

    def wording(self) -> AbstractContextManager[None]:
        """Errors raised in the block are in terms of the fields that the client sent."""
        return in_terms_of(self.sent_names)

    def sampling(self, defaults: SamplingParams) -> SamplingParams:
        """The sampling asked for; what was left out is as in `defaults`."""
        fields = {name: getattr(self, name) for name in _SAMPLING_FIELDS}
        sequences = {name: tuple(getattr(self, name) or ()) for name in _SAMPLING_SEQUENCES}
        fields |= {"max_tokens": self.max_new_tokens, "logprobs": self.num_logprobs}
        fields["structured"] = self.form.structured if self.form else None
        fields["include_stop_str_in_output"] = self.shows_stops
        asked = {name: value for name, value in fields.items() if value is not None}
        return msgspec.structs.replace(defaults, **asked, **sequences)


_SAMPLING_FIELDS = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"),
    *("logit_bias", "n", "seed", "min_tokens", "ignore_eos", "prompt_logprobs", "skip_special_tokens"),
)
"""Fields that have one name in bodies and in `SamplingParams`."""

_SAMPLING_SEQUENCES = ("stop", "stop_token_ids", "bad_words", "allowed_token_ids", "logprob_token_ids")


class CompletionBody(Body):
    """POST /v1/completions. `prompt` becomes a list: n choices for each.

    echo   the text starts with the prompt, and log-probabilities with the prompt's
    """

    neutral: ClassVar[Neutral] = NEUTRAL | NEUTRAL_IN_COMPLETION

    prompt: list[Any]
    echo: bool | None = None
    logprobs: Int | None = None

    @field_validator("prompt", mode="before", json_schema_input_type=Text | Ids | Prompts)
    @classmethod
    def _prompt(cls, value: Any) -> list[Prompt]:
        prompts = prompts_of(value)
        if len(prompts) > MAX_PROMPTS:
            raise ValueError(f"{len(prompts)} prompts: at most {MAX_PROMPTS} in one request")
        if prompts:
            return prompts
        raise ValueError(
            f"is {shown(value)}: it must be a string, a list of token ids, or a list of several of one kind; "
            "none of them empty"
        )

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


@contextmanager
def in_terms_of(names: Mapping[str, str]) -> Iterator[None]:
    """RequestErrors raised in the block have these other names for fields. (A prompt is always called one.)"""
    try:
        yield
    except RequestError as error:
        message = str(error)
        for name, sent in names.items():
            message = message if name == "prompt" else re.sub(rf"\b{name}\b", sent, message)
        raise RequestError(message, names.get(error.param or "", error.param)) from None


def prompts_of(value: Any) -> list[Prompt]:
    """Prompts, of which one may stand alone. Empty: it is something else."""
    one = _prompt_of(value)
    several = [one] if one is not None else [_prompt_of(each) for each in value] if isinstance(value, list) else []
    prompts = [each for each in several if each is not None]
    return prompts if len(prompts) == len(several) else []


def _prompt_of(value: Any) -> Prompt | None:
    if isinstance(value, str):
        return value
    ids = [whole(i) for i in value] if isinstance(value, list) else []
    return ids if ids and all(type(i) is int for i in ids) else None
