"""`core train-mtp`: trains draft heads for a model that ships none."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from server.commands.options import count

if TYPE_CHECKING:
    from core.speculate.card import Card

PICTURE = "curves.svg"


def train_mtp(
    model: Annotated[str, typer.Argument(help="A folder, a .gguf file, a hub id, or a weights package.")],
    *,
    out: Annotated[Path, typer.Option(help="Folder for the heads; it keeps unfinished work, too.")],
    layers: Annotated[int, typer.Option(help="Draft layers: tokens that are foretold after the next one.")] = 3,
    text: Annotated[list[Path], typer.Option(metavar="FILE", help="Text to learn from as well; repeatable.")] = [],  # noqa: B006
    num_texts: Annotated[int, count("Texts that the model writes to learn from.")] = 2048,
    num_held_out: Annotated[int, count("Texts that it writes to judge the heads by.")] = 64,
    temperature: Annotated[list[float], typer.Option(help="It writes at these in turn; repeatable.")] = [0.0, 0.7, 1.0],  # noqa: B006
    seq: Annotated[int, count("Tokens of a text, with its prompt.")] = 256,
    steps: Annotated[int, count("Steps of training.")] = 2000,
    batch: Annotated[int, count("Texts in a step.")] = 8,
    lr: Annotated[float, typer.Option(help="Greatest learning rate.")] = 1e-3,
    draft_vocab: Annotated[int, count("Frequent tokens that drafts are chosen among.")] = 8192,
    seed: Annotated[int, typer.Option(help="Same seed, same heads, on the same machine.")] = 0,
    device: Annotated[str | None, typer.Option(help="Device plugin. Default: the accelerator found, else cpu.")] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a training in this folder was ended.")] = False,
) -> None:
    """Train draft heads (multi-token prediction) on text that MODEL itself writes, and any text files."""
    _check_picture()
    from core.speculate.recipe import Recipe
    from core.speculate.train import read_history, train

    recipe = Recipe(
        model=model,
        num_layers=layers,
        files=tuple(map(str, text)),
        num_texts=num_texts,
        num_held_out=num_held_out,
        temperatures=tuple(temperature),
        row_tokens=seq,
        steps=steps,
        batch=batch,
        learning_rate=lr,
        draft_vocab=draft_vocab,
        seed=seed,
        device=device,
        dtype=dtype,
    )
    with _bars() as tell:
        card = train(recipe, out, resume=resume, tell=tell)
    from server.training_curves import draw

    (out / PICTURE).write_text(draw(read_history(out)))
    _show(card, out)


def _check_picture() -> None:
    """Raises: ConfigError before hours of work where the picture at their end could not be drawn."""
    from core.errors import ConfigError

    if find_spec("matplotlib") is None:
        raise ConfigError("the picture of the training needs matplotlib: pip install 'core[train]'")


@contextmanager
def _bars() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each stage on stderr; where that is not a terminal, a line for each tenth of a stage."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    from server.show import log

    told: dict[TaskID, int] = {}  # tenths of each stage
    tasks: dict[str, TaskID] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=log, disable=not log.is_terminal) as bars:

        def tell(what: str, done: int, total: int) -> None:
            stage = what.partition(",")[0]
            if stage not in tasks:
                tasks[stage] = bars.add_task(what, total=total)
            bars.update(tasks[stage], description=what, completed=done)
            tenths = 10 * done // total
            if tenths > told.get(tasks[stage], -1) and not log.is_terminal:
                log.print(f"{what}: {done} of {total}", highlight=False)
                told[tasks[stage]] = tenths

        yield tell


def _show(card: "Card", folder: Path) -> None:
    from server.show import out, table

    found = card.acceptance
    numbers = zip(found.per_position, found.loss, card.loss, strict=True)
    rows = [(k, f"{a:.1%}", f"{held:.3f}", f"{own:.3f}") for k, (a, held, own) in enumerate(numbers, 1)]
    columns = ("layer", "agrees, if those before do", "held-out loss", "training loss")
    out.print(table(f"Drafts at {found.num_positions} held-out positions", columns, rows))
    out.print(f"{found.tokens_per_step:.2f} tokens a step; heads, card and {PICTURE} are in {folder}", highlight=False)
