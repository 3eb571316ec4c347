"""Reading a body: at most so many bytes."""

from fastapi import Request

from core.errors import RequestError
from server.errors import TooLargeError

MAX_BODY_BYTES = 32 * 1024 * 1024
"""Unless the operator says otherwise (--max-body-bytes)."""


async def read(http: Request) -> bytes:
    """The body.

    Raises: TooLargeError when it is longer than the operator allows, before all of it has come; RequestError when it is
    compressed.
    """
    encoding = http.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise RequestError(f"Content-Encoding is {encoding!r}: bodies are read as they come; send it uncompressed")
    limit: int = http.app.state.max_body_bytes
    announced = http.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise TooLargeError(int(announced), limit)
    raw = bytearray()
    async for part in http.stream():
        raw += part
        if len(raw) > limit:
            raise TooLargeError(len(raw), limit)
    return bytes(raw)
