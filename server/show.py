"""What people see on a terminal: the plan, kernels, devices, measurements. Results go to stdout, the rest to stderr."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from core.config import EngineConfig
    from core.engine.llm import LLM

out = Console()
log = Console(stderr=True)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table of plain text: what it shows is never read as markup."""
    made = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*(_plain(cell) for cell in row))
    return made


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The same as a table of Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plan_tables(
    plan: Iterable[Sequence[object]], kernels: Iterable[Sequence[object]], notes: Sequence[str]
) -> list[Table]:
    """The resolved plan, who decided each value, who provides each kernel, and why; and what else is to be known."""
    return [
        table("Plan", ("what", "value", "decided by"), plan),
        table("Kernels", ("kernel", "provider", "reason", "uses"), kernels),
        *([table("Notes", ("note",), [(note,) for note in notes])] if notes else []),
    ]


def log_plan(plan: Iterable[Sequence[object]], kernels: Iterable[Sequence[object]], notes: Sequence[str]) -> None:
    """The plan on stderr."""
    for made in plan_tables(plan, kernels, notes):
        log.print(made)


def print_json(value: Any) -> None:
    """`value` on stdout, for programs: no colour, no wrapping."""
    out.file.write(msgspec.json.format(msgspec.json.encode(value)).decode() + "\n")


def _plain(cell: object) -> Any:
    return Text("" if cell is None else str(cell))


@contextmanager
def progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr for as long as the block runs, where stderr is a terminal. Call it with (done, in all)."""
    with Progress(console=log, transient=True, disable=not log.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def open_llm(config: "EngineConfig") -> "LLM":
    """The engine in this process, with a bar while it loads. Raises: ConfigError, PluginError."""
    from core.engine.llm import LLM
    from core.engine.progress import starting_bars

    with starting_bars() as bars:
        return LLM(**msgspec.structs.asdict(config), progress=bars.loading, compiling=bars.compiling)
