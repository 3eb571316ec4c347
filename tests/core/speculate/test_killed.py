"""A training that is killed and resumed ends with the same bits as one that nobody disturbed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from core.speculate.card import sha256_of
from core.speculate.train import read_history, train
from tests.core.speculate.small import recipe, silent

CHILD = """
import os, sys
from pathlib import Path
from core.speculate.train import train
from tests.core.speculate.small import recipe

stage, last = sys.argv[3], int(sys.argv[4])

def tell(what, done, total):
    if what.startswith(stage) and done >= last:
        os.kill(os.getpid(), 9)

train(recipe(Path(sys.argv[1])), Path(sys.argv[2]), resume=True, tell=tell)
"""
ROOT = Path(__file__).parents[3]


def killed(model: Path, folder: Path, stage: str, last: int) -> None:
    """Train in a process that is killed when it has done `last` of a stage."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", CHILD, str(model), str(folder), stage, str(last)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.heavy
def test_killed_and_resumed_is_the_same_to_the_bit(trained: Path, tiny_llama_dir: Path, tmp_path: Path) -> None:
    """Killed after the first group of texts, and 5 steps after a checkpoint; with a torn line of text, too."""
    folder = tmp_path / "out"
    killed(tiny_llama_dir, folder, "writing learn texts", 64)
    [texts] = (folder / "work").glob("learn-*.jsonl")
    assert texts.read_bytes().count(b"\n") == 64
    with texts.open("ab") as file:
        file.write(b'{"ids":[5,17')
    killed(tiny_llama_dir, folder, "training", 25)
    assert not (folder / "heads.json").exists()
    assert (folder / "work" / "checkpoint.safetensors").exists()

    train(recipe(tiny_llama_dir), folder, resume=True, tell=silent)
    assert sha256_of(folder / "heads.safetensors") == sha256_of(trained / "heads.safetensors")
    assert read_history(folder) == read_history(trained)
    assert (folder / "heads.json").read_bytes() == (trained / "heads.json").read_bytes()
