"""`core bench start`: from the command `core serve` to the first token of its first answer."""

from typing import Annotated

import typer


def start(
    args: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGS", help="Of core serve: the model, and its options.")
    ] = None,
    num_iters: Annotated[int, typer.Option(min=1, help="Starts, after one to warm up.")] = 5,
    time_limit: Annotated[float, typer.Option(min=1, help="Seconds for a start.")] = 600,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Seconds until a server is ready for requests, and from then to its first token: real starts, one by one."""
    import statistics

    from server.show import out, print_json, progress, table
    from server.start_cost import measure

    starts = []
    with progress("Starting") as tick:
        for done in range(num_iters + 1):
            one = measure(args or [], time_limit)
            if done:  # the first one reads files that the others find in memory
                starts.append(one)
            tick(done + 1, num_iters + 1)
    times = {name: [one._asdict()[name] for one in starts] for name in starts[0]._fields}
    if as_json:
        print_json({name: {"median": statistics.median(each), "all": each} for name, each in times.items()})
        return
    titles = {"ready_s": "ready for requests", "first_s": "first token after that"}
    rows = [
        [titles[name], f"{statistics.median(each):.2f}", f"{min(each):.2f}", f"{max(each):.2f}"]
        for name, each in times.items()
    ]
    out.print(table(f"Seconds, {num_iters} starts", ["", "median", "least", "most"], rows))
