"""`core chat`: a conversation in the terminal, in this process."""

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from server.commands.options import with_engine

if TYPE_CHECKING:
    from core.config import EngineConfig
    from core.engine.llm import LLM


@with_engine
def chat(
    config: "EngineConfig",
    system: Annotated[str | None, typer.Option(help="What the model is told first.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Tokens in one answer at most.")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0 takes the likeliest token each time. Default: 0.")
    ] = None,
) -> None:
    """Talk to a model. An empty line or Ctrl-D ends; Ctrl-C stops an answer. Flags that are absent are as in the
    model's generation_config.json."""
    from core.errors import RequestError
    from server.show import open_llm

    history = [] if system is None else [{"role": "system", "content": system}]
    flags = {"max_tokens": max_tokens, "temperature": temperature}
    with open_llm(config) as llm:
        while line := _ask():
            asked = [*history, {"role": "user", "content": line}]
            try:
                history = [*asked, {"role": "assistant", "content": _answer(llm, asked, flags)}]
            except RequestError as error:
                typer.echo(f"error: {error}", err=True)


def _ask() -> str:
    try:
        return input("> ").strip()
    except EOFError:
        return ""


def _answer(llm: "LLM", messages: list[dict[str, str]], flags: dict[str, Any]) -> str:
    """Print the answer as it comes. Returns what was said, also when it was stopped."""
    from server.commands.sampling import sampling_for

    said = []
    prompt_ids = llm.chat_prompt(messages)
    sampling = sampling_for(llm, prompt_ids, flags, temperature=0.0, max_tokens=None)
    with suppress(KeyboardInterrupt):
        for delta in llm.stream(prompt_ids, sampling):
            said.append(delta.text)
            typer.echo(delta.text, nl=False)
    typer.echo()
    return "".join(said)
