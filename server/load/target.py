"""A server of OpenAI's API, and one request to it, streamed and timed as clients see it."""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

from core.errors import ConfigError
from server.load.asks import Ask

DONE = b"[DONE]"


@dataclass
class Outcome:
    """What became of one request. Times in seconds; `gaps_s` lie between chunks with text. `error` is None for one that
    was answered to its end."""

    begin_s: float = 0.0
    first_s: float = 0.0
    total_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    num_in: int = 0
    num_cached: int = 0
    num_out: int = 0
    error: str | None = None

    @property
    def per_token_s(self) -> float | None:
        """Mean time of a token after the first; None where there is none."""
        return (self.total_s - self.first_s) / (self.num_out - 1) if self.num_out > 1 else None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None

    @property
    def shown(self) -> bool:
        return bool(self.text or (self.delta and (self.delta.content or self.delta.reasoning_content)))


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class Target:
    """Where requests go. `chat` chooses between conversations and completions."""

    def __init__(self, client: httpx.AsyncClient, *, model: str, chat: bool, ignore_eos: bool) -> None:
        self._client = client
        self._path = "/v1/chat/completions" if chat else "/v1/completions"
        self._chat = chat
        self._same: dict[str, Any] = {"model": model, "temperature": 0.0, "stream": True}
        self._same["stream_options"] = {"include_usage": True}
        if ignore_eos:
            self._same["ignore_eos"] = True

    async def send(self, ask: Ask) -> Outcome:
        """Ask, and read the answer to its end. Errors are outcomes."""
        prompt = ask.prompt()
        said = {"messages": [{"role": "user", "content": prompt}]} if self._chat else {"prompt": prompt}
        body = self._same | said | {"max_tokens": ask.num_out}
        outcome = Outcome(begin_s=time.perf_counter())
        try:
            async with self._client.stream("POST", self._path, json=body) as response:
                if response.status_code != 200:
                    text = (await response.aread()).decode(errors="replace")
                    outcome.error = f"HTTP {response.status_code}: {text[:200]}"
                else:
                    await _read(response, outcome)
        except (httpx.HTTPError, msgspec.MsgspecError) as error:
            outcome.error = f"{type(error).__name__}: {error}"
        return outcome


async def _read(response: httpx.Response, outcome: Outcome) -> None:
    """Take in the events of a stream."""
    last_s, done = 0.0, False
    async for event in _events(response):
        now_s = time.perf_counter() - outcome.begin_s
        if event == DONE:
            done = True
            continue
        chunk = _decode(event)
        if chunk.error is not None:
            outcome.error = f"{chunk.error}"[:200]
        if chunk.usage is not None:
            details = chunk.usage.prompt_tokens_details
            outcome.num_in, outcome.num_out = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
            outcome.num_cached = (details.cached_tokens or 0) if details else 0
        if any(choice.shown for choice in chunk.choices):
            if last_s:
                outcome.gaps_s.append(now_s - last_s)
            else:
                outcome.first_s = now_s
            outcome.total_s = last_s = now_s
    if outcome.error is None and not (done and last_s):
        outcome.error = "the stream ended without [DONE]" if not done else "the answer has no text"


async def _events(response: httpx.Response) -> AsyncIterator[bytes]:
    """The data of each event, as soon as it is whole."""
    rest = b""
    async for raw in response.aiter_bytes():
        *lines, rest = (rest + raw).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


async def first_model(client: httpx.AsyncClient) -> str:
    """The first model that the server lists. Raises: ConfigError when it does not answer so."""
    try:
        answer = await client.get("/v1/models")
        answer.raise_for_status()
        name: str = answer.json()["data"][0]["id"]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as error:
        raise ConfigError(
            f"{client.base_url} does not list its models ({error}): start a server, name its address with --base-url, "
            "and the model with --model"
        ) from None
    return name
