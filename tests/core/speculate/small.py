"""A training small enough for tests: its model, its recipe, and the parts that tests look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from core.speculate.recipe import Recipe


def recipe(model: Path, **other: Any) -> Recipe:
    settings: dict[str, Any] = {
        "model": str(model),
        "num_layers": 2,
        "num_texts": 70,
        "num_held_out": 12,
        "row_tokens": 40,
        "steps": 30,
        "batch": 4,
        "learning_rate": 5e-3,
        "draft_vocab": 96,
        "device": "cpu",
        "dtype": "float32",
    }
    return Recipe(**{**settings, **other})


def silent(stage: str, done: int, total: int) -> None:
    """Nobody is told."""
