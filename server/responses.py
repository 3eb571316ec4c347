"""What a client gets back: bodies, stream chunks and errors, as msgspec structs (encoded in about 1 us)."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from server.logprobs import ChatLogprobs, PromptLogprobs, TextLogprobs

encode = msgspec.json.Encoder().encode


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct):
    reasoning_tokens: int


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class ErrorDetail(msgspec.Struct):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct):
    error: ErrorDetail


class CalledFunction(msgspec.Struct):
    """In chunks: the name comes first, then arguments bit by bit."""

    name: str | UnsetType = UNSET
    arguments: str = ""


class Call(msgspec.Struct):
    """A call of a function. Chunks number it, and name its id and type in the first one alone."""

    function: CalledFunction
    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class ChatMessage(msgspec.Struct):
    """A whole answer, or what a chunk adds to one. Reasoning stands under both names that clients look for."""

    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[Call] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    index: int
    message: ChatMessage | UnsetType = UNSET
    delta: ChatMessage | UnsetType = UNSET
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET


class TextChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Reply(msgspec.Struct):
    """A response, or one chunk of it. Chunks show `usage` only where it was asked for. What is of the prompt
    is a conversation's; that of a completion stands in its choices."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Any]
    usage: Usage | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class ModelCard(msgspec.Struct):
    id: str
    created: int
    max_model_len: int
    root: str
    object: str = "model"
    owned_by: str = "core"
    parent: None = None


class ModelList(msgspec.Struct):
    data: list[ModelCard]
    object: str = "list"


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int, reasoning_tokens: int) -> Usage:
    total = prompt_tokens + completion_tokens
    cached, reasoning = PromptTokensDetails(cached_tokens), CompletionTokensDetails(reasoning_tokens)
    return Usage(prompt_tokens, completion_tokens, total, cached, reasoning)
