"""`GET /kv`: what the engine's KV cache holds, for `core kv`. Refuses a wrong number of sequences."""

from fastapi import FastAPI, Request, Response

from core.engine.snapshot import MAX_SEQUENCES
from core.errors import RequestError
from server.errors import json_response
from server.generation import Engine
from server.responses import encode

DEFAULT_SEQUENCES = "20"

LONGEST = 20
"""Characters of a number. Python refuses to read very long ones."""


def add_kv(app: FastAPI, engine: Engine) -> None:
    """Add the route. `?sequences=N` says how many sequences to show at most."""

    @app.get("/kv")
    async def kv(http: Request) -> Response:
        asked = http.query_params.get("sequences", DEFAULT_SEQUENCES)
        if not (asked.isdecimal() and len(asked) <= LONGEST and int(asked) <= MAX_SEQUENCES):
            shown = asked if len(asked) <= LONGEST else f"{asked[:LONGEST]}..."
            raise RequestError(f"sequences is {shown}: it must be a number up to {MAX_SEQUENCES}", "sequences")
        return json_response(encode(await engine.inspect(int(asked))))
