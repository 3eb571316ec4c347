"""`core bench`: how fast this machine is with a model, in this process; and `serve`, load on a server."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from server.commands import bench_peers, bench_serve, bench_spec, bench_start
from server.commands.options import engine_config, parse_count, with_engine, with_options
from server.commands.static_cases import static_cases

if TYPE_CHECKING:
    from core.config import EngineConfig
    from server.measure import Case

app = typer.Typer(help="Measure speed: in this process, or of a server.")
app.command("serve")(bench_serve.serve)
app.command("peers")(bench_peers.peers)
app.command("spec")(bench_spec.spec)
app.command("start")(bench_start.start)


@app.command("latency")
@with_options(config=engine_config, wanted=static_cases)
def latency(
    config: "EngineConfig",
    wanted: "list[Case]",
    num_iters: Annotated[int, typer.Option(min=1, help="Repetitions, after one to warm up.")] = 3,
    peer: Annotated[Literal["transformers"] | None, typer.Option(help="Measure this beside core, in turns.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Tokens per second of static batches: decoding at each batch size, prefill at each length."""
    _compare(config, wanted, num_iters, peer, as_json)


@app.command("throughput")
@with_engine
def throughput(
    config: "EngineConfig",
    num_prompts: Annotated[int, typer.Option(min=1, help="Requests, all there at the start.")] = 64,
    input_len: Annotated[int, typer.Option(parser=parse_count, metavar="N", help="Tokens in each prompt.")] = 128,
    output_len: Annotated[int, typer.Option(parser=parse_count, metavar="N", help="Tokens in each output.")] = 64,
    num_iters: Annotated[int, typer.Option(min=1, help="Repetitions, after one to warm up.")] = 1,
    peer: Annotated[Literal["transformers"] | None, typer.Option(help="Measure this beside core, in turns.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Tokens per second, prompts included, from the first request to the last answer."""
    from server.measure import Case

    _compare(config, [Case("throughput", num_prompts, input_len, output_len)], num_iters, peer, as_json)


@app.command("host")
def host(
    num_seqs: Annotated[int, typer.Option(min=1, help="Sequences that run.")] = 256,
    num_steps: Annotated[int, typer.Option(min=20, help="Steps to measure.")] = 400,
    prefix_len: Annotated[int, typer.Option(parser=parse_count, metavar="N", help="Tokens of a long prefix.")] = 131072,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Microseconds that the host spends on a step beside the device, and on finding a long prefix in the cache."""
    from server.host_cost import prefix_costs, step_costs, summary
    from server.show import out, print_json, table

    costs = step_costs(num_seqs, num_steps) | prefix_costs(prefix_len, 200)
    results = {name: summary(values) for name, values in costs.items()}
    if as_json:
        print_json({name: {"median_us": median, "p99_us": p99} for name, (median, p99) in results.items()})
        return
    rows = [[name, f"{median:,.0f}", f"{p99:,.0f}"] for name, (median, p99) in results.items()]
    out.print(table(f"Microseconds, {num_seqs} sequences, prefix of {prefix_len} tokens", ["", "median", "p99"], rows))


def _compare(config: "EngineConfig", wanted: "list[Case]", num_iters: int, peer: str | None, as_json: bool) -> None:
    """Measures core, beside a peer that is installed in this environment where one is named, and shows it."""
    import sys
    from pathlib import Path

    from server.compare import compare
    from server.peers.kinds import Peer
    from server.peers.report import listed, rates
    from server.peers.weights import check
    from server.show import log, out, print_json

    peers = [Peer(peer, Path(sys.executable))] if peer else []
    check(config, peers)
    comparison = compare(config, wanted, num_iters, peers)
    versions = [runner.versions for runner in comparison.runners]
    if as_json:
        print_json({"versions": versions, "results": listed(comparison.results)})
        return
    out.print(rates(comparison.results))
    log.print("\n".join(versions), highlight=False)
