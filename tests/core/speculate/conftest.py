"""Heads that were trained once, for all tests that only look at them."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.speculate.train import train
from tests.core.speculate.small import recipe, silent


@pytest.fixture(scope="session")
def trained(tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished folder. Not to be written to."""
    folder = tmp_path_factory.mktemp("heads") / "out"
    train(recipe(tiny_llama_dir), folder, resume=False, tell=silent)
    return folder
