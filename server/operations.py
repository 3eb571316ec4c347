"""What each route takes and gives, for the OpenAPI document (`server.openapi`). Owns no behaviour: routes check bodies
by the models named here, and make answers of the structs named here."""

from dataclasses import dataclass
from typing import Any, TypedDict

from core.engine.snapshot import MAX_SEQUENCES, Snapshot
from server.conversation import ChatBody
from server.message_api.asked import MessageBody, PromptBody
from server.response_api.asked import ResponseBody
from server.responses import ChatChoice, ModelCard, ModelList, Reply, TextChoice
from server.routes.embeddings import Embeddings, EmbeddingsBody
from server.routes.page import PlanReply
from server.routes.tokens import DetokenizeBody, Text, TokenizeBody, TokenizeChatBody, Tokens
from server.schema import CompletionBody
from server.strict import Strict

ERRORS = {
    400: "The request is wrong: the message names the field, its value and the limit.",
    401: "There is no API key, or a wrong one.",
    404: "It does not exist here: a model, or a response.",
    413: "The body is longer than the operator allows.",
    429: "Too much waits already: Retry-After says when to come again.",
    500: "The device could not do it, or a defect.",
    503: "No requests are taken: the engine is not running, or the server is about to end.",
}

_OF_BODIES = (400, 413, 503)
_OF_WORK = (*_OF_BODIES, 404, 429, 500)


class Status(TypedDict):
    status: str


class Version(TypedDict):
    version: str


class InputTokens(TypedDict):
    input_tokens: int


class ResponseReply(TypedDict):
    """A response: what it repeats of its request is left out here."""

    id: str
    object: str
    created_at: int
    model: str
    status: str
    output: list[dict[str, Any]]
    usage: dict[str, Any] | None
    error: dict[str, str] | None
    incomplete_details: dict[str, str] | None


class MessageReply(TypedDict):
    id: str
    type: str
    role: str
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None
    usage: dict[str, int]


class MessageErrorDetail(TypedDict):
    type: str
    message: str


class MessageError(TypedDict):
    type: str
    error: MessageErrorDetail


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One route.

    takes     its body: any one of these
    gives     what 200 answers with: a struct or a typed dict, or the name of a media type
    choices   what the choices of a `Reply` are
    streams   it can answer in server-sent events
    query     name of a parameter -> its schema
    errors    statuses that it may answer with, other than those that every route may
    """

    about: str
    gives: Any
    takes: tuple[type[Strict], ...] = ()
    choices: Any = None
    streams: bool = False
    query: tuple[tuple[str, dict[str, Any]], ...] = ()
    errors: tuple[int, ...] = ()


_TOKENIZE = Operation(
    about="The tokens of a text or a conversation.",
    takes=(TokenizeBody, TokenizeChatBody),
    gives=Tokens,
    errors=(*_OF_BODIES, 404),
)
_DETOKENIZE = Operation(about="The text of tokens.", takes=(DetokenizeBody,), gives=Text, errors=(*_OF_BODIES, 404))
_HEALTH = Operation(about="Whether to send requests here.", gives=Status, errors=(503,))

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/chat/completions"): Operation(
        about="Answers a conversation.",
        takes=(ChatBody,),
        gives=Reply,
        choices=ChatChoice,
        streams=True,
        errors=_OF_WORK,
    ),
    ("POST", "/v1/completions"): Operation(
        about="Continues prompts.",
        takes=(CompletionBody,),
        gives=Reply,
        choices=TextChoice,
        streams=True,
        errors=_OF_WORK,
    ),
    ("POST", "/v1/responses"): Operation(
        about="Makes a response.", takes=(ResponseBody,), gives=ResponseReply, streams=True, errors=_OF_WORK
    ),
    ("GET", "/v1/responses/{response_id}"): Operation(about="A response.", gives=ResponseReply, errors=(404,)),
    ("POST", "/v1/responses/{response_id}/cancel"): Operation(
        about="Ends a response in the background.", gives=ResponseReply, errors=(400, 404, 503)
    ),
    ("POST", "/v1/messages"): Operation(
        about="Answers a conversation.", takes=(MessageBody,), gives=MessageReply, streams=True, errors=_OF_WORK
    ),
    ("POST", "/v1/messages/count_tokens"): Operation(
        about="How many tokens a conversation has.", takes=(PromptBody,), gives=InputTokens, errors=(*_OF_BODIES, 404)
    ),
    ("POST", "/v1/embeddings"): Operation(
        about="A vector for each input.", takes=(EmbeddingsBody,), gives=Embeddings, errors=_OF_WORK
    ),
    ("POST", "/tokenize"): _TOKENIZE,
    ("POST", "/v1/tokenize"): _TOKENIZE,
    ("POST", "/detokenize"): _DETOKENIZE,
    ("POST", "/v1/detokenize"): _DETOKENIZE,
    ("GET", "/v1/models"): Operation(about="What is served here.", gives=ModelList),
    ("GET", "/v1/models/{name}"): Operation(about="One of them.", gives=ModelCard, errors=(404,)),
    ("GET", "/health"): _HEALTH,
    ("GET", "/ping"): _HEALTH,
    ("GET", "/live"): Operation(about="Whether this process lives.", gives=Status),
    ("GET", "/version"): Operation(about="The release.", gives=Version),
    ("GET", "/plan"): Operation(about="Every decision, and who made it.", gives=PlanReply),
    ("GET", "/kv"): Operation(
        about="What the KV cache holds.",
        gives=Snapshot,
        query=(("sequences", {"type": "integer", "minimum": 0, "maximum": MAX_SEQUENCES}),),
        errors=(400, 500, 503),
    ),
    ("GET", "/metrics"): Operation(about="For Prometheus.", gives="text/plain"),
    ("GET", "/"): Operation(about="The page for people.", gives="text/html"),
    ("GET", "/openapi.json"): Operation(about="This document.", gives=dict[str, Any]),
}
