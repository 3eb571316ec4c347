"""`core bench spec`: what drafts gain, by kind of prompts, batch size and draft length, and why."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from server.commands.options import parse_count, with_engine
from server.commands.out_folder import make_folder
from server.commands.static_cases import BATCH_SIZES

if TYPE_CHECKING:
    from core.config import EngineConfig


class Kind(StrEnum):
    """Of prompts: see `server.draft_speed.asked`, which is not imported for the command's help."""

    CHAT = "chat"
    CODE = "code"
    COPY = "copy"


KINDS = list(Kind)


@with_engine
def spec(
    config: "EngineConfig",
    batch_size: Annotated[
        list[int], typer.Option(min=1, help="Sequences that decode together; repeatable.")
    ] = BATCH_SIZES,
    prompts: Annotated[list[Kind], typer.Option(help="Kind of prompts; repeatable.")] = KINDS,
    drafts: Annotated[
        list[int], typer.Option(metavar="N", help="Drafts of a sequence in a step, at most; repeatable.")
    ] = [],  # noqa: B006
    fixed: Annotated[bool, typer.Option("--fixed", help="Compute all drafts, also where fewer would pay.")] = False,
    output_len: Annotated[int, typer.Option(parser=parse_count, metavar="N", help="Tokens to decode.")] = 128,
    num_iters: Annotated[int, typer.Option(min=1, help="Repetitions, after one to warm up.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Folder for results, tables and picture; what it has stays.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """What --speculative (default: ngram) gains on chat, code and copying, and why: core/speculate/README.md."""
    from core.speculate.choice import parse_speculative

    asked = parse_speculative(config.speculative or "ngram")
    each = [str(asked._replace(max_drafts=num)) for num in drafts] or [str(asked)]
    for text in each:
        parse_speculative(text)  # refuses numbers that make no sense
    from server.draft_speed.report import RESULTS, begin

    if out is not None:
        make_folder(out, RESULTS)
    report = begin(config.model, out)
    from server.draft_speed.run import Wanted, measure
    from server.show import log, print_json, progress
    from server.show import out as screen

    wanted = Wanted(each, [kind.value for kind in prompts], batch_size, output_len, num_iters, fixed)
    with progress("Measuring") as tick:
        for gain in measure(config, wanted, tick):
            report.add(gain)
            log.print(gain.told(), highlight=False)
            if out is not None:
                report.keep(out)  # a run that is ended has what it measured, and another one goes on
    if out is not None:
        report.write(out)
    if as_json:
        print_json(report.as_json())
        return
    for made in report.tables():
        screen.print(made)
    log.print("\n".join(report.notes()), highlight=False)
