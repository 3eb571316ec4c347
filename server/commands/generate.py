"""`core generate`: answer one prompt, in this process."""

from typing import TYPE_CHECKING, Annotated

import typer

from server.commands.options import with_engine

if TYPE_CHECKING:
    from core.config import EngineConfig
    from core.engine.llm import LLM, RequestOutput
    from core.request import SamplingParams

MAX_TOKENS = 256


@with_engine
def generate(
    config: "EngineConfig",
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="What to answer, or to continue with --raw.")],
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without chat template.")] = False,
    n: Annotated[int | None, typer.Option("--n", help="Outputs, drawn independently.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help=f"Tokens to write at most. Default: {MAX_TOKENS}.")] = None,
    min_tokens: Annotated[int | None, typer.Option(help="Tokens before which nothing ends the output.")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0 takes the likeliest token each time. Default: 0.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the likeliest with this much probability. Default: 1.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Draw from the k likeliest tokens; 0 means all. Default: 0.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Leave out what is less likely than this part of the best.")
    ] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="Divides logits of tokens seen. Default: 1.")] = None,
    frequency_penalty: Annotated[
        float | None, typer.Option(help="Subtracted for each time a token was output.")
    ] = None,
    presence_penalty: Annotated[float | None, typer.Option(help="Subtracted once a token was output.")] = None,
    sampling_seed: Annotated[int | None, typer.Option(help="Same seed, same draws.")] = None,
    stop: Annotated[list[str], typer.Option(help="Text that ends the output; repeatable.")] = [],  # noqa: B006
    logprobs: Annotated[int | None, typer.Option(help="Show log-probabilities, and this many likeliest.")] = None,
) -> None:
    """Answer one prompt on stdout, as the words come. Sampling flags that are absent are as in the model's
    generation_config.json, else as their help says."""
    from server.commands.sampling import sampling_for
    from server.show import open_llm

    flags = {
        "n": n,
        "max_tokens": max_tokens,
        "min_tokens": min_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "seed": sampling_seed,
        "stop": tuple(stop),
        "logprobs": logprobs,
    }
    with open_llm(config) as llm:
        ids = llm.tokenizer.encode(prompt) if raw else llm.chat_prompt([{"role": "user", "content": prompt}])
        sampling = sampling_for(llm, ids, flags, temperature=0.0, max_tokens=MAX_TOKENS)
        if sampling.n == 1 and sampling.logprobs is None:
            _stream(llm, ids, sampling)
            return
        for output in llm.generate([ids], sampling):
            _show(llm, output, sampling)


def _stream(llm: "LLM", prompt_ids: list[int], sampling: "SamplingParams") -> None:
    for delta in llm.stream(prompt_ids, sampling):
        typer.echo(delta.text, nl=False)
    typer.echo()


def _show(llm: "LLM", output: "RequestOutput", sampling: "SamplingParams") -> None:
    """One of several outputs, or one with log-probabilities."""
    from server.logprobs import Spelling
    from server.show import out, table

    if sampling.n > 1:
        typer.echo(f"[{output.index}]")
    typer.echo(output.text)
    if sampling.logprobs is not None:
        text = Spelling(llm.tokenizer, llm.tokenizer.special_ids).text
        rows = [
            (
                repr(text(token_id)),
                f"{report.logprob:.4f}",
                report.rank,
                "  ".join(f"{text(i)!r} {p:.4f}" for i, p in zip(report.top_ids, report.top_logprobs, strict=True)),
            )
            for token_id, report in zip(output.token_ids, output.logprobs, strict=True)
        ]
        out.print(table("Log-probabilities", ("token", "logprob", "rank", "likeliest"), rows))
