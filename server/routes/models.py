"""GET /v1/models: what is served, under each of its names."""

import time

from fastapi import FastAPI, Response

from server.errors import json_response
from server.responses import ModelCard, ModelList, encode
from server.served import Served


def add_models(app: FastAPI, served: Served) -> None:
    """Add the routes."""
    started = int(time.time())
    cards = {name: ModelCard(name, started, served.max_model_len, served.root) for name in served.names}

    @app.get("/v1/models")
    async def models() -> Response:
        return json_response(encode(ModelList(list(cards.values()))))

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        served.check_model(name)
        return json_response(encode(cards[name]))
