"""`core bench peers`: core beside other engines on the same weights, in turns, and beside what the machine can do."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from server.commands.options import engine_config, with_options
from server.commands.out_folder import make_folder
from server.commands.static_cases import static_cases

if TYPE_CHECKING:
    from core.config import EngineConfig
    from server.measure import Case


@with_options(config=engine_config, wanted=static_cases)
def peers(
    config: "EngineConfig",
    wanted: "list[Case]",
    peer: Annotated[
        list[str], typer.Option(metavar="NAME=PYTHON", help="A peer and the interpreter that has it; repeatable.")
    ],
    packed_type: Annotated[
        Literal["Q4_0", "Q4_1", "Q8_0"] | None,
        typer.Option(help="With --weights packed: matrices of a GGUF model in this type. Default: as they are stored."),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Of each engine. Default: what torch takes here.")] = None,
    num_iters: Annotated[int, typer.Option(min=3, help="Rounds, after one to warm up.")] = 3,
    time_limit: Annotated[float, typer.Option(min=1, help="Seconds for a peer to open, and for each run.")] = 1800,
    out: Annotated[Path | None, typer.Option(help="Folder for results, table, picture, and what peers said.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Tokens per second beside other engines, each in a process of its own: server/peers/README.md sets them up."""
    from server.peers.kinds import parse_peers
    from server.peers.weights import check

    asked = parse_peers(peer)
    check(config, asked, packed_type)
    if out is not None:
        make_folder(out)
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # torch reads it when it is loaded, and so do kernels of core
    from server.peers.report import Report
    from server.peers.run import run
    from server.show import log, print_json
    from server.show import out as screen

    report: Report = run(config, wanted, num_iters, asked, out, time_limit, packed_type)
    if out is not None:
        report.write(out)
    if as_json:
        print_json(report.as_json())
        return
    screen.print(report.table())
    log.print("\n".join(report.notes()), highlight=False)
