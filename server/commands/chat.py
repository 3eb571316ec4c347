"""`core chat`: a conversation in the terminal, in this process."""

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from server.commands.options import with_engine

if TYPE_CHECKING:
    from core.config import EngineConfig
    from core.engine.llm import LLM
    from core.request import SamplingParams


@with_engine
def chat(
    config: "EngineConfig",
    system: Annotated[str | None, typer.Option(help="What the model is told first.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Tokens in one answer at most.")] = None,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token each time.")] = 0.0,
) -> None:
    """Talk to a model. An empty line or Ctrl-D ends; Ctrl-C stops an answer."""
    from core.errors import RequestError
    from core.request import SamplingParams
    from server.show import open_llm

    history = [] if system is None else [{"role": "system", "content": system}]
    sampling = SamplingParams(temperature=temperature, max_tokens=max_tokens)
    with open_llm(config) as llm:
        while line := _ask():
            asked = [*history, {"role": "user", "content": line}]
            try:
                history = [*asked, {"role": "assistant", "content": _answer(llm, asked, sampling)}]
            except RequestError as error:
                typer.echo(f"error: {error}", err=True)


def _ask() -> str:
    try:
        return input("> ").strip()
    except EOFError:
        return ""


def _answer(llm: "LLM", messages: list[dict[str, str]], sampling: "SamplingParams") -> str:
    """Print the answer as it comes. Returns what was said, also when it was stopped."""
    said = []
    with suppress(KeyboardInterrupt):
        for delta in llm.stream(llm.chat_prompt(messages), sampling):
            said.append(delta.text)
            typer.echo(delta.text, nl=False)
    typer.echo()
    return "".join(said)
