"""Errors as clients expect them: an HTTP status and `{"error": {message, type, param, code}}`, as OpenAI's know it, or
on paths of the Messages API `{"type": "error", "error": {type, message}}`, as Anthropic's do.

RequestError 400 (never 422) · unknown model 404 · a body too long 413 · CapacityError 429, or 503 when
nothing more is taken · DeviceError 500, or 503 when the engine is not running.
"""

import math
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from core.errors import CapacityError, CoreError, DeviceError, RequestError
from server.responses import ErrorBody, ErrorDetail, encode

MESSAGES = "/v1/messages"

_KINDS = {429: "rate_limit_error", 503: "service_unavailable_error"}
_MESSAGE_KINDS = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large",
                  429: "rate_limit_error", 503: "overloaded_error"}  # fmt: skip


class UnknownModelError(RequestError):
    """The request names a model that is not served here."""

    def __init__(self, asked: str, served: tuple[str, ...]) -> None:
        super().__init__(f"the model {asked!r} is not served here; served: {', '.join(served)}", "model")


class TooLargeError(RequestError):
    """The body is longer than the operator allows."""

    def __init__(self, num_bytes: int, limit: int) -> None:
        super().__init__(
            f"the body has {num_bytes} bytes or more, and the limit is {limit}: send less, "
            "or have --max-body-bytes raised"
        )


class EngineDownError(DeviceError):
    """The engine process is not running."""


def status_of(error: CoreError) -> int:
    """The HTTP status that says what kind of error this is."""
    match error:
        case UnknownModelError():
            return 404
        case TooLargeError():
            return 413
        case RequestError():
            return 400
        case CapacityError(retry_after_s=None) | EngineDownError():
            return 503
        case CapacityError():
            return 429
    return 500


def error_body(status: int, message: str, param: str | None = None, code: str | None = None) -> bytes:
    """The JSON of one error."""
    kind = "invalid_request_error" if 400 <= status < 429 else _KINDS.get(status, "server_error")
    return encode(ErrorBody(ErrorDetail(message, kind, param, code)))


def message_error(status: int, message: str) -> dict[str, Any]:
    """The same for clients of the Messages API."""
    kind = _MESSAGE_KINDS.get(status, "invalid_request_error" if 400 <= status < 429 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def core_error_body(error: CoreError) -> bytes:
    """The JSON of an error raised by core."""
    return error_body(status_of(error), str(error), *_param_and_code(error))


def _param_and_code(error: CoreError) -> tuple[str | None, str | None]:
    codes: list[tuple[type[CoreError], str]] = [
        (UnknownModelError, "model_not_found"),
        (EngineDownError, "engine_not_running"),
        (CapacityError, "no_capacity"),
    ]
    code = next((code for kind, code in codes if isinstance(error, kind)), None)
    return error.param if isinstance(error, RequestError) else None, code


def error_response(
    path: str,
    status: int,
    message: str,
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The whole response to a request for `path`, known before anything was sent."""
    if path.startswith(MESSAGES):
        return json_response(encode(message_error(status, message)), status, headers)
    return json_response(error_body(status, message, param, code), status, headers)


def core_error_response(path: str, error: CoreError) -> Response:
    """The same for an error raised by core."""
    headers = {}
    if isinstance(error, CapacityError) and error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    return error_response(path, status_of(error), str(error), *_param_and_code(error), headers)


def json_response(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(body, status, headers, media_type="application/json")
