"""Bars on standard error while an engine starts; nothing where that is not a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

Told = Callable[[int, int], None]


class Bars(NamedTuple):
    """Functions to call with what is done and what there is in all."""

    loading: Told  # bytes of weights
    compiling: Told  # shapes of steps


@contextmanager
def starting_bars() -> Iterator[Bars]:
    """A bar for weights, and one for shapes that appears once there are some to compile."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[done]}"), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        weights = bar.add_task("Loading weights", total=None, done="")
        shapes = bar.add_task("Compiling steps", total=None, done="", visible=False)

        def loading(done: int, total: int) -> None:
            bar.update(weights, completed=done, total=total, done=f"{done / 2**20:,.0f} of {total / 2**20:,.0f} MiB")

        def compiling(done: int, total: int) -> None:
            bar.update(shapes, completed=done, total=total, done=f"{done} of {total} shapes", visible=True)

        yield Bars(loading, compiling)
