"""`core generate`: answer one prompt, in this process."""

from typing import TYPE_CHECKING, Annotated

import typer

from server.commands.options import with_engine

if TYPE_CHECKING:
    from core.config import EngineConfig


@with_engine
def generate(
    config: "EngineConfig",
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="What to answer, or to continue with --raw.")],
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without chat template.")] = False,
    max_tokens: Annotated[int, typer.Option(help="Tokens to write at most.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token each time.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens with this much probability.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Draw from the k likeliest tokens; 0 means all.")] = 0,
    sampling_seed: Annotated[int | None, typer.Option(help="Same seed, same draws.")] = None,
    stop: Annotated[list[str], typer.Option(help="Text that ends the output; repeatable.")] = [],  # noqa: B006
) -> None:
    """Answer one prompt on stdout, as the words come."""
    from core.request import SamplingParams
    from server.show import open_llm

    sampling = SamplingParams(
        temperature=temperature, top_p=top_p, top_k=top_k, seed=sampling_seed, max_tokens=max_tokens, stop=tuple(stop)
    )
    with open_llm(config) as llm:
        ids = llm.tokenizer.encode(prompt) if raw else llm.chat_prompt([{"role": "user", "content": prompt}])
        for delta in llm.stream(ids, sampling):
            typer.echo(delta.text, nl=False)
    typer.echo()
