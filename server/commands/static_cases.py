"""Options for the cases of `core bench latency` and `core bench peers`: batches that decode, and prompts to prefill."""

from typing import TYPE_CHECKING, Annotated

import typer

from server.commands.options import parse_count

if TYPE_CHECKING:
    from server.measure import Case

BATCH_SIZES = [1, 8, 32]
PREFILL_LENS = [512, 2048]
INPUT_LENS = [128]


def static_cases(
    batch_size: Annotated[
        list[int], typer.Option(min=1, help="Sequences that decode together; repeatable.")
    ] = BATCH_SIZES,
    input_len: Annotated[
        list[int], typer.Option(parser=parse_count, metavar="N", help="Tokens before decoding; repeatable.")
    ] = INPUT_LENS,
    output_len: Annotated[int, typer.Option(parser=parse_count, metavar="N", help="Tokens to decode.")] = 64,
    prefill_len: Annotated[
        list[int], typer.Option(min=0, help="Prompt lengths to prefill; repeatable; 0: none.")
    ] = PREFILL_LENS,
) -> "list[Case]":
    from server.measure import cases

    return cases(batch_size, input_len, output_len, [length for length in prefill_len if length])
