"""`core serve`: the engine process, and an OpenAI-compatible server in front of it. Flags have vLLM's names where they
mean the same."""

import json
import os
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from server.commands.options import count, engine_config, with_options

if TYPE_CHECKING:
    from core.config import EngineConfig
    from server.app import Door
    from server.dialect import Wishes
    from server.gate import Limits
    from server.listen import Address

KEY_VARIABLE = "CORE_API_KEY"


def parse_list(text: str) -> tuple[str, ...]:
    """`["a", "b"]`, as vLLM takes it, or one value."""
    try:
        found = json.loads(text) if text.startswith("[") else [text]
    except json.JSONDecodeError:
        found = None
    if not (isinstance(found, list) and all(isinstance(item, str) for item in found)):
        raise typer.BadParameter(f'{text!r} is not a JSON list of strings such as ["https://example.org"]')
    return tuple(found)


def _address(
    *,
    host: Annotated[str, typer.Option(help="Address to listen on. The default is this machine alone.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")] = 8000,
    uds: Annotated[str | None, typer.Option(metavar="PATH", help="Listen on a Unix socket instead.")] = None,
    ssl_keyfile: Annotated[str | None, typer.Option(metavar="PATH", help="Serve HTTPS: the key, in PEM.")] = None,
    ssl_certfile: Annotated[str | None, typer.Option(metavar="PATH", help="And its certificate.")] = None,
) -> "Address":
    from server.listen import Address

    return Address(host=host, port=port, uds=uds, ssl_keyfile=ssl_keyfile, ssl_certfile=ssl_certfile)


def _door(
    *,
    api_key: Annotated[
        list[str],
        typer.Option(help=f"Key that clients must send; repeatable. Better in {KEY_VARIABLE}: ps shows flags."),
    ] = [],  # noqa: B006
    allowed_origins: Annotated[
        str, typer.Option(metavar="JSON", help="Origins of web pages that may call: [] is none, * is all.")
    ] = "[]",
    allow_credentials: Annotated[
        bool, typer.Option("--allow-credentials", help="Such pages may send credentials.")
    ] = False,
    allowed_methods: Annotated[str, typer.Option(metavar="JSON", help="Methods for such pages.")] = "*",
    allowed_headers: Annotated[str, typer.Option(metavar="JSON", help="Headers for such pages.")] = "*",
    max_body_bytes: Annotated[int, count("Longest body of a request; longer ones get 413.")] = "32M",  # type: ignore[assignment]
    old_metric_names: Annotated[
        bool, typer.Option("--old-metric-names", help="Metrics also under names that vLLM had before.")
    ] = False,
) -> "Door":
    from server.app import Door

    if not all(api_key):
        raise typer.BadParameter(
            "a key is empty, which every request has: give one, or leave it out", param_hint="--api-key"
        )
    if max_body_bytes < 1:
        raise typer.BadParameter(f"{max_body_bytes} lets no request in: give 1 at least", param_hint="--max-body-bytes")
    return Door(
        keys=(*api_key, *filter(None, [os.environ.get(KEY_VARIABLE)])),
        origins=parse_list(allowed_origins),
        credentials=allow_credentials,
        methods=parse_list(allowed_methods),
        headers=parse_list(allowed_headers),
        max_body_bytes=max_body_bytes,
        old_metric_names=old_metric_names,
    )


def _limits(
    *,
    max_num_queued_reqs: Annotated[int | None, count("Requests that may wait; more get 429. Default: any.")] = None,
    max_num_queued_tokens: Annotated[int | None, count("Prompt tokens that may wait; more get 429.")] = None,
) -> "Limits":
    from server.gate import Limits

    return Limits(max_num_queued_reqs, max_num_queued_tokens)


def _wishes(
    *,
    chat_template: Annotated[
        str | None, typer.Option(metavar="PATH", help="A Jinja file in place of the model's own chat template.")
    ] = None,
    trust_request_chat_template: Annotated[
        bool, typer.Option("--trust-request-chat-template", help="Requests may bring a chat_template (sandboxed).")
    ] = False,
    tool_call_parser: Annotated[
        str | None, typer.Option(help="How the model writes calls of tools. Default: as its template does.")
    ] = None,
    enable_auto_tool_choice: Annotated[bool, typer.Option(help="The model may choose by itself to call tools.")] = True,
    reasoning_parser: Annotated[
        str | None, typer.Option(help='How the model marks reasoning, or "none". Default: as its template does.')
    ] = None,
) -> "Wishes":
    from server.dialect import Wishes, read_template

    return Wishes(
        chat_template=read_template(chat_template) if chat_template else None,
        tool_call_parser=tool_call_parser,
        reasoning_parser=reasoning_parser,
        auto_tool_choice=enable_auto_tool_choice,
        request_templates=trust_request_chat_template,
    )


@with_options(config=engine_config, address=_address, door=_door, limits=_limits, wishes=_wishes)
def serve(
    config: "EngineConfig",
    address: "Address",
    door: "Door",
    limits: "Limits",
    wishes: "Wishes",
    *,
    served_model_name: Annotated[list[str], typer.Option(help="Name for clients; repeatable. Default: MODEL.")] = [],  # noqa: B006
    shutdown_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds that running requests may take to finish after SIGTERM.")
    ] = 5.0,
    on_engine_failure: Annotated[Literal["exit", "restart"], typer.Option(help="When the engine dies.")] = "exit",
    log_format: Annotated[
        Literal["text", "json"], typer.Option(help="json: one object a line, with one for each request.")
    ] = "text",
    generation_config: Annotated[
        Literal["auto", "none"], typer.Option(help="Sampling defaults from the model's generation_config.json.")
    ] = "auto",
    override_generation_config: Annotated[
        str, typer.Option(metavar="JSON", help='Sampling defaults that win, such as {"temperature": 0.5}.')
    ] = "{}",
) -> None:
    """Serve a model to OpenAI clients, on http://127.0.0.1:8000/v1, with a page for people at / and metrics at
    /metrics."""
    from server.run import Options, run

    options = Options(
        address=address,
        names=tuple(served_model_name) or (config.model,),
        on_failure=on_engine_failure,
        generation_config=generation_config,
        override=override_generation_config,
        wishes=wishes,
        door=door,
        limits=limits,
        shutdown_timeout_s=shutdown_timeout,
        log_format=log_format,
    )
    raise typer.Exit(run(config, options))
