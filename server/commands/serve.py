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
    generation_config: Annotated[
        Literal["auto", "none"], typer.Option(help="Sampling defaults from the model's generation_config.json.")
    ] = "auto",
    override_generation_config: Annotated[
        str, typer.Option(metavar="JSON", help='Sampling defaults that win, such as {"temperature": 0.5}.')
    ] = "{}",
) -> None:
    """Serve a model to OpenAI clients: /v1/chat/completions, /v1/completions, /v1/models, /health."""
    from server.run import Options, run

    options = Options(
        host=host,
        port=port,
        names=tuple(served_model_name) or (config.model,),
        on_failure=on_engine_failure,
        generation_config=generation_config,
        override=override_generation_config,
    )
    raise typer.Exit(run(config, options))
