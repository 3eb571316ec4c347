"""`core bench serve`: load on a server, this one or another with OpenAI's API."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from server.commands.options import count

if TYPE_CHECKING:
    from pathlib import Path

    from server.load.asks import Ask
    from server.load.target import Outcome

KEY_VARIABLES = ("CORE_API_KEY", "OPENAI_API_KEY")


def serve(
    base_url: Annotated[str, typer.Option(help="Where the server listens.")] = "http://127.0.0.1:8000",
    backend: Annotated[
        Literal["openai", "openai-chat"], typer.Option(help="Completions, or conversations.")
    ] = "openai",
    model: Annotated[str | None, typer.Option(help="Model to ask for. Default: the first that is listed.")] = None,
    api_key: Annotated[str | None, typer.Option(help=f"Default: what {' or '.join(KEY_VARIABLES)} says.")] = None,
    num_prompts: Annotated[int | None, count("Requests. Default: 100, or the whole trace.")] = None,
    input_len: Annotated[int, count("Tokens of each prompt, nearly.")] = 128,
    output_len: Annotated[int, count("Tokens of each answer.")] = 64,
    prefix_len: Annotated[int, count("Tokens before these that all prompts share.")] = 0,
    request_rate: Annotated[float, typer.Option(help="Requests in a second; inf sends all at once.")] = float("inf"),
    burstiness: Annotated[float, typer.Option(help="1 is a Poisson process; less comes in bursts.")] = 1.0,
    max_concurrency: Annotated[int | None, typer.Option(min=1, help="Requests under way at once.")] = None,
    trace: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Replay a trace: Mooncake's or a coding agent's JSON lines, Azure's CSV."),
    ] = None,
    trace_speed: Annotated[float, typer.Option(help="Replay it so many times as fast.")] = 1.0,
    max_model_len: Annotated[int | None, count("Leave out what is longer in a trace, with its answer.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Ask for answers of the full length.")] = False,
    goodput: Annotated[
        list[str], typer.Option(metavar="NAME:MS", help="Bound of a good answer: ttft, tpot, e2el; repeatable.")
    ] = [],  # noqa: B006
    metric_percentiles: Annotated[str, typer.Option(help="Percentiles to show.")] = "90,99",
    seed: Annotated[int, typer.Option(help="Of prompts and times.")] = 0,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds until a request counts as failed.")] = 600.0,
    as_json: Annotated[bool, typer.Option("--json", help="For programs; names are vLLM's.")] = False,
) -> None:
    """Load on a server of OpenAI's API: time to first token, between tokens and to the end, throughput, goodput."""
    import asyncio
    from pathlib import Path

    from core.errors import ConfigError
    from server.load.report import parse_bounds, summary

    bounds, percentiles = parse_bounds(goodput), _percentiles(metric_percentiles)
    for name, value in (("--request-rate", request_rate), ("--burstiness", burstiness), ("--trace-speed", trace_speed)):
        if not value > 0:
            raise ConfigError(f"{name} is {value}: it must be above 0")
    if trace is None:
        if trace_speed != 1.0 or max_model_len is not None:
            raise ConfigError("--trace-speed and --max-model-len are of a trace: name one with --trace")
        asks = _at_random(num_prompts, input_len, output_len, request_rate, burstiness, seed, prefix_len)
    else:
        if request_rate != float("inf") or burstiness != 1.0 or prefix_len:
            raise ConfigError("--request-rate, --burstiness and --prefix-len: a trace has its own; leave them out")
        asks = _from_trace(Path(trace), num_prompts, trace_speed, max_model_len)
    settings = {"chat": backend == "openai-chat", "ignore_eos": ignore_eos}
    outcomes, duration_s = asyncio.run(_run(asks, base_url, api_key, model, settings, max_concurrency, timeout))
    _show(summary(outcomes, duration_s, bounds, percentiles), percentiles, as_json)
    if not any(outcome.error is None for outcome in outcomes):
        raise typer.Exit(1)


def _at_random(
    num_prompts: int | None,
    input_len: int,
    output_len: int,
    rate: float,
    burstiness: float,
    seed: int,
    prefix_len: int,
) -> "list[Ask]":
    from server.load.asks import at_random

    num = 100 if num_prompts is None else num_prompts
    return at_random(num, input_len, output_len, None if rate == float("inf") else rate, burstiness, seed, prefix_len)


def _from_trace(path: "Path", num_prompts: int | None, speed: float, longest: int | None) -> "list[Ask]":
    from server.load.asks import from_trace
    from server.show import log

    asks, left_out = from_trace(path, num_prompts, speed, longest)
    if left_out:
        log.print(f"{left_out} requests of the trace are longer than --max-model-len and left out", highlight=False)
    return asks


async def _run(
    asks: "list[Ask]",
    base_url: str,
    api_key: str | None,
    model: str | None,
    settings: dict[str, bool],
    concurrency: int | None,
    timeout_s: float,
) -> "tuple[list[Outcome], float]":
    import os

    import httpx

    from server.load.replay import replay
    from server.load.target import Target, first_model
    from server.show import progress

    key = api_key or next(filter(None, map(os.environ.get, KEY_VARIABLES)), None)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    root = base_url.rstrip("/").removesuffix("/v1")
    async with httpx.AsyncClient(base_url=root, headers=headers, limits=limits, timeout=timeout_s) as client:
        target = Target(client, model=model or await first_model(client), **settings)
        with progress("Requests") as tick:
            return await replay(target, asks, concurrency, tick)


def _percentiles(text: str) -> list[float]:
    from core.errors import ConfigError

    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [-1.0]
    if not all(0 <= percent <= 100 for percent in found):
        raise ConfigError(f"--metric-percentiles is {text!r}: write numbers from 0 to 100, such as 50,90,99")
    return found


def _show(numbers: dict[str, Any], percentiles: list[float], as_json: bool) -> None:
    from server.load.report import METRICS
    from server.show import out, print_json, table

    if as_json:
        print_json(numbers)
        return
    kinds = ["mean", "median", *(f"p{percent:g}" for percent in percentiles)]
    counts = [
        (name.replace("_", " "), f"{value:,.2f}" if isinstance(value, float) else f"{value:,}")
        for name, value in numbers.items()
        if isinstance(value, int | float) and not name.endswith("_ms")
    ]
    times = [[name, *(f"{numbers[f'{kind}_{name}_ms']:,.2f}" for kind in kinds)] for name in METRICS]
    out.print(table("Requests", ("what", "value"), counts))
    out.print(table("Milliseconds", ("what", *kinds), times))
    if numbers["errors"]:
        out.print(table("Errors", ("error", "times"), list(numbers["errors"].items())))
