"""Whether to send requests here: /health and /ping (does the engine work), /live (does this process), /version.

/health is 503 while the engine loads, is dead, or its loop stands still, and while the server drains.
"""

from importlib.metadata import version

from fastapi import FastAPI, Response

from server.door import Drain
from server.errors import error_body, json_response
from server.generation import Engine
from server.responses import encode


def add_health(app: FastAPI, engine: Engine, drain: Drain) -> None:
    """Add the routes."""
    release = encode({"version": version("core")})

    @app.get("/health")
    @app.get("/ping")
    async def health() -> Response:
        if drain.reason:
            return json_response(error_body(503, drain.reason, code="draining"), 503)
        reason = engine.healthy()
        if reason is None:
            return json_response(b'{"status":"ok"}')
        return json_response(error_body(503, reason, code="engine_not_running"), 503)

    @app.get("/live")
    async def live() -> Response:
        return json_response(b'{"status":"ok"}')

    @app.get("/version")
    async def versions() -> Response:
        return json_response(release)
