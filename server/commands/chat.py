"""`core chat`: a conversation in the terminal, streamed from an engine process as the server would."""

from typing import TYPE_CHECKING, Annotated

import typer

from server.commands.options import with_engine

if TYPE_CHECKING:
    from core.config import EngineConfig


@with_engine
def chat(
    config: "EngineConfig",
    system: Annotated[str | None, typer.Option(help="What the model is told first.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Tokens in one answer at most.")] = None,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token each time.")] = 0.0,
) -> None:
    """Talk to a model. An empty line or Ctrl-D ends; Ctrl-C stops an answer."""
    from core.errors import RequestError
    from server.conversation import Conversation

    with Conversation(config, system, max_tokens, temperature) as conversation:
        while line := _ask():
            try:
                for text in conversation.say(line):
                    typer.echo(text, nl=False)
                typer.echo()
            except RequestError as error:
                typer.echo(f"error: {error}", err=True)


def _ask() -> str:
    try:
        return input("> ").strip()
    except EOFError:
        return ""
