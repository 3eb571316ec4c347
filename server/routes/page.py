"""GET / is the page for people; GET /plan is what it shows of the plan, with the notes, for programs too."""

import hashlib
import re
from base64 import b64encode
from importlib.resources import files

import msgspec
from fastapi import FastAPI, Response

from core.engine.front import ReadyInfo
from server.errors import json_response
from server.responses import encode
from server.served import Served


class PlanRow(msgspec.Struct):
    name: str
    value: str
    decided_by: str


class KernelRow(msgspec.Struct):
    row: str
    provider: str
    reason: str
    uses: int


class PlanReply(msgspec.Struct):
    model: str
    max_model_len: int
    plan: list[PlanRow]
    kernels: list[KernelRow]
    notes: list[str]


def add_page(app: FastAPI, info: ReadyInfo, served: Served) -> None:
    """Add the routes."""
    page = files("server").joinpath("page", "index.html").read_bytes()
    headers = {"Content-Security-Policy": _policy(page.decode()), "Cache-Control": "no-cache"}
    plan = PlanReply(
        served.names[0],
        served.max_model_len,
        [PlanRow(*row) for row in info.plan],
        [KernelRow(*row) for row in info.kernels],
        info.notes,
    )

    @app.get("/")
    async def show() -> Response:
        return Response(page, media_type="text/html", headers=headers)

    @app.get("/plan")
    async def show_plan() -> Response:
        return json_response(encode(plan))


def _policy(page: str) -> str:
    """Nothing runs but the page's own script and style, known by their digests; nothing is loaded from elsewhere."""
    digest = {
        tag: b64encode(hashlib.sha256(re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[0].encode()).digest())
        for tag in ("script", "style")
    }
    return (
        f"default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"frame-ancestors 'none'; script-src 'sha256-{digest['script'].decode()}'; "
        f"style-src 'sha256-{digest['style'].decode()}'"
    )
