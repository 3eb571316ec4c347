"""`core train-mtp` as a person runs it: heads, card and picture; and what it refuses before it works."""

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from processes import run_core, run_here

from core.model.source import open_source
from core.speculate.checkpoint import History, Judged
from core.speculate.heads import load_heads
from server.training_curves import draw

SMALL = (
    "--layers", "2", "--num-texts", "6", "--num-held-out", "3", "--seq", "24", "--steps", "4", "--batch", "2",
    "--draft-vocab", "32", "--device", "cpu", "--dtype", "float32",
)  # fmt: skip


@pytest.mark.heavy
def test_heads_card_and_picture(tiny_llama_dir: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog " * 4)
    out = tmp_path / "out"
    done = run_core("train-mtp", str(tiny_llama_dir), "--out", str(out), "--text", str(text), *SMALL)
    assert done.returncode == 0, done.stderr
    assert "tokens a step" in done.stdout
    for told in ("writing learn texts: 6 of 6", "running the model over held-out texts: 3 of 3", ": 4 of 4"):
        assert told in done.stderr
    heads = load_heads(out, open_source(str(tiny_llama_dir), [], []))
    assert (heads.card.num_layers, heads.card.recipe["steps"], len(heads.draft_ids)) == (2, 4, 32)
    assert [*heads.card.data["files"]] == ["text.txt"]
    assert heads.card.data["texts"] > 6
    assert ElementTree.parse(out / "curves.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--steps", "0"], ["steps", "0", "at least 1"]),
        (["--device", "null"], ["null", "computes nothing"]),
        (["--seq", "12q"], ["12q"]),
    ],
)
def test_refusals_are_one_line(args: list[str], words: list[str], tiny_llama_dir: Path, tmp_path: Path) -> None:
    done = run_here("train-mtp", str(tiny_llama_dir), "--out", str(tmp_path / "out"), *SMALL, *args)
    assert done.returncode == 2
    assert all(word in done.stderr for word in words), done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out" / "heads.json").exists()


def test_without_matplotlib_it_does_not_begin(tmp_path: Path) -> None:
    program = "import sys; sys.modules['matplotlib'] = None; from server.cli import main; main()"
    command = [sys.executable, "-c", program, "train-mtp", "nothing", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'core[train]'" in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_picture_has_a_line_for_each_layer() -> None:
    losses = [[2.0 / (step + 1), 3.0 / (step + 1), 4.0 / (step + 1)] for step in range(30)]
    picture = draw(History(losses, [Judged(10, [0.3, 0.2, 0.1]), Judged(30, [0.6, 0.5, 0.4])]))
    root = ElementTree.fromstring(picture)
    words = {element.text for element in root.iter() if element.text}
    assert {"layer 1", "layer 2", "layer 3", "step", "loss (nats)", "agreement"} <= words
    assert picture == draw(History(losses, [Judged(10, [0.3, 0.2, 0.1]), Judged(30, [0.6, 0.5, 0.4])]))
