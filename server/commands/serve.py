"""`core serve`: the engine process, and an OpenAI-compatible server in front of it."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from server.commands.options import with_engine

if TYPE_CHECKING:
    from core.config import EngineConfig


@with_engine
def serve(
    config: "EngineConfig",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")] = 8000,
    served_model_name: Annotated[list[str], typer.Option(help="Name for clients; repeatable. Default: MODEL.")] = [],  # noqa: B006
    on_engine_failure: Annotated[Literal["exit", "restart"], typer.Option(help="When the engine dies.")] = "exit",
) -> None:
    """Serve a model to OpenAI clients: /v1/chat/completions, /v1/completions, /v1/models, /health."""
    from server.run import run

    raise typer.Exit(run(config, host, port, tuple(served_model_name) or (config.model,), on_engine_failure))
