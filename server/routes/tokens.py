"""POST /tokenize and /detokenize, at the root as vLLM has them and under /v1.

A conversation is rendered and encoded by the same code as one to be answered, so its tokens are what a model would get.
"""

from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from pydantic import create_model

from core.errors import RequestError
from server.chat import Desk, off_loop_if
from server.conversation import ChatBody
from server.errors import json_response
from server.responses import encode
from server.routes.body import read
from server.served import Served
from server.strict import Int, Strict, checked, decoded, parse

CHAT_FIELDS = {
    *("model", "messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template"),
    *("chat_template_kwargs", "documents", "reasoning_effort", "add_special_tokens"),
}
"""What of a conversation's body decides its prompt; `ChatBody` says what each may be."""


class TokenizeBody(Strict):
    """A text. Special tokens are added as before a completion, unless the client says otherwise."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool = True
    return_token_strs: bool | None = None


class Shown(Strict):
    """What a client may ask about a conversation's tokens."""

    return_token_strs: bool | None = None


_FIELDS: dict[str, Any] = {name: (f.annotation, f) for name, f in ChatBody.model_fields.items() if name in CHAT_FIELDS}
TokenizeChatBody = create_model("TokenizeChatBody", __base__=Shown, **{**_FIELDS, "model": (str | None, None)})
"""A conversation, as it is described to clients; it is `ChatBody` that checks it."""


class DetokenizeBody(Strict):
    """Ids; special tokens among them are shown."""

    tokens: list[Int]
    model: str | None = None


class Tokens(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str | None] | None = None


class Text(msgspec.Struct):
    prompt: str


def add_tokens(app: FastAPI, desk: Desk, served: Served) -> None:
    """Add the routes."""

    @app.post("/tokenize")
    @app.post("/v1/tokenize")
    async def tokenize(http: Request) -> Response:
        raw = await read(http)
        given = decoded(raw)
        if "messages" in given and "prompt" in given:
            raise RequestError("prompt and messages are both there: send one of them", "prompt")
        ids, show = await (of_messages(given, len(raw)) if "messages" in given else of_text(given))
        strs = [desk.tokenizer.id_to_token(i) for i in ids] if show else None
        return json_response(encode(Tokens(len(ids), served.max_model_len, ids, strs)))

    @app.post("/detokenize")
    @app.post("/v1/detokenize")
    async def detokenize(http: Request) -> Response:
        body = parse(await read(http), DetokenizeBody)
        served.check_model(model_of(body.model))
        size = desk.tokenizer.vocab_size
        for i in body.tokens:
            if not 0 <= i < size:
                raise RequestError(f"token id {i} is not in the vocabulary: ids go from 0 to {size - 1}", "tokens")
        text = await off_loop_if(
            len(body.tokens), lambda: desk.tokenizer.decode(body.tokens, skip_special_tokens=False)
        )
        return json_response(encode(Text(text)))

    async def of_text(given: dict[str, Any]) -> tuple[list[int], bool | None]:
        body = checked(given, TokenizeBody)
        served.check_model(model_of(body.model))
        size, special = len(body.prompt), body.add_special_tokens
        ids = await off_loop_if(size, lambda: desk.tokenizer.encode(body.prompt, add_special_tokens=special))
        return ids, body.return_token_strs

    async def of_messages(given: dict[str, Any], size: int) -> tuple[list[int], bool | None]:
        conversation = {k: v for k, v in given.items() if k in CHAT_FIELDS}
        conversation["model"] = model_of(given.get("model"))
        show = checked({k: v for k, v in given.items() if k not in CHAT_FIELDS}, Shown).return_token_strs
        body = checked(conversation, ChatBody)
        served.check_model(body.model)
        return await off_loop_if(size, lambda: desk.chat_ids(body)), show

    def model_of(asked: Any) -> Any:
        """What a body asks for, or the one that is served where it asks for none."""
        return served.names[0] if asked is None else asked
