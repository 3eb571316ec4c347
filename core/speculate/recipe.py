"""What is asked of the trainer of draft heads, and the folder that it works in.

In DIR, `work/` has what a killed run goes on from: the recipe, texts, traces and the checkpoint. It may be deleted when
the heads are there. A folder that holds heads, or another unfinished training, is refused.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from core.errors import ConfigError
from core.speculate.card import CARD, write_whole

CHECKPOINT, RECIPE = "checkpoint.safetensors", "recipe.json"


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the result follows from, on one machine.

    num_layers      draft layers
    files           text files to learn from, beside what the model writes
    num_texts       rows that the model writes to learn from, at `temperatures` in turn; num_held_out: for judging
    row_tokens      tokens in a row, prompt and answer together
    steps, batch    how often it learns, from how many rows each time
    learning_rate   the greatest: it rises over the first steps and falls as a cosine to a tenth
    draft_vocab     most frequent tokens that drafts are chosen among
    dtype           of the frozen model and of the heads' arithmetic; their weights are float32 in training
    """

    model: str
    num_layers: int = 3
    files: tuple[str, ...] = ()
    num_texts: int = 2048
    num_held_out: int = 64
    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
    row_tokens: int = 256
    steps: int = 2000
    batch: int = 8
    learning_rate: float = 1e-3
    draft_vocab: int = 8192
    seed: int = 0
    device: str | None = None
    dtype: str = "auto"

    def check(self) -> None:
        """Raises: ConfigError for a value that no training could have."""
        least = {"num_texts": 0, "seed": 0, "row_tokens": 16}
        for name in ("num_layers", "num_texts", "num_held_out", "row_tokens", "steps", "batch", "draft_vocab", "seed"):
            limit = least.get(name, 1)
            if getattr(self, name) < limit:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be at least {limit}")
        if not self.num_texts and not self.files:
            raise ConfigError("num_texts is 0 and there are no text files: nothing to learn from; give one of them")
        if not 0 < self.learning_rate < 1:
            raise ConfigError(f"learning_rate is {self.learning_rate}: it must be above 0 and below 1")
        if not self.temperatures or min(self.temperatures) < 0:
            raise ConfigError(f"temperatures are {list(self.temperatures)}: give some, none below 0")
        if self.num_layers >= self.row_tokens // 4:
            raise ConfigError(
                f"num_layers is {self.num_layers} and row_tokens {self.row_tokens}: a row must be more than 4 times "
                "as long as there are layers"
            )


def begin(folder: Path, recipe: Recipe, *, resume: bool) -> Path:
    """Take a folder for this recipe. Returns the folder for unfinished work.

    Raises: ConfigError when it holds something else.
    """
    recipe.check()
    work = folder / "work"
    if (folder / CARD).exists():
        raise ConfigError(f"{folder} holds draft heads already: give another folder with --out")
    if (work / CHECKPOINT).exists() and not resume:
        raise ConfigError(f"{folder} holds an unfinished training: give --resume, or another folder with --out")
    if resume and (work / RECIPE).exists():
        _check_same(folder, msgspec.json.decode((work / RECIPE).read_bytes(), type=Recipe), recipe)
    work.mkdir(parents=True, exist_ok=True)
    write_whole(work / RECIPE, msgspec.json.encode(recipe))
    return work


def _check_same(folder: Path, began: Recipe, asked: Recipe) -> None:
    for name in Recipe.__struct_fields__:
        if (was := getattr(began, name)) != (now := getattr(asked, name)):
            raise ConfigError(
                f"{name} is {now}, and the training in {folder} began with {was}: ask for the same, or give another "
                "folder with --out"
            )
