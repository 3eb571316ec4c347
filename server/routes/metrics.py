"""GET /metrics, for Prometheus. The engine is asked when somebody scrapes, and answers between two steps.

While a step takes long, what it said last is told; when it is stuck or gone, its counts are left out.
"""

import asyncio

from fastapi import FastAPI, Request, Response

from core.engine.snapshot import Snapshot
from core.errors import DeviceError
from server.exposition import Exposition
from server.generation import Engine

ENGINE_S = 1.0  # how long to wait for its counts


def add_metrics(app: FastAPI, engine: Engine, exposition: Exposition) -> None:
    """Add the route."""
    last: Snapshot | None = None

    @app.get("/metrics")
    async def metrics(http: Request) -> Response:
        text, media_type = exposition.write(await counts(), http.headers.get("accept", ""))
        return Response(text, media_type=media_type)

    async def counts() -> Snapshot | None:
        nonlocal last
        try:
            last = await asyncio.wait_for(engine.inspect(0), ENGINE_S)
        except (DeviceError, TimeoutError):
            if engine.healthy() is not None:
                last = None
        return last
