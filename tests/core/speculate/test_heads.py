"""Which heads are refused, and what the source of those that are not gives."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from core.engine.models import find_model
from core.errors import ConfigError
from core.model.digest import digest_of
from core.model.mtp import DRAFT_HEAD
from core.speculate.card import sha256_of
from core.speculate.heads import DRAFT_IDS, load_heads
from tests.conftest import write_llama

FIRST = "model.layers.3."


@pytest.fixture
def heads(trained: Path, tmp_path: Path) -> Path:
    """A copy of finished heads."""
    folder = tmp_path / "heads"
    shutil.copytree(trained, folder, ignore=shutil.ignore_patterns("work"))
    return folder


def card(folder: Path, **changes: Any) -> None:
    path = folder / "heads.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Other weights, of which the card knows."""
    tensors = load_file(folder / "heads.safetensors")
    change(tensors)
    save_file(tensors, folder / "heads.safetensors")
    card(folder, weights_sha256=sha256_of(folder / "heads.safetensors"))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda f: shutil.rmtree(f), "has no heads.json: give a folder that `core train-mtp` finished"),
        (lambda f: cut(f / "heads.json"), "is not the card of draft heads"),
        (lambda f: card(f, format=9), "is of format 9: this core reads format 1"),
        (lambda f: (f / "heads.safetensors").unlink(), "has no heads.safetensors"),
        (lambda f: cut(f / "heads.safetensors"), "has SHA-256 .*: copy both files again"),
        (lambda f: weights(f, lambda t: t.pop(DRAFT_IDS)), "has no draft_ids"),
        (lambda f: weights(f, lambda t: t[DRAFT_IDS].mul_(9)), "are not 96 ascending ids below 384"),
        (lambda f: weights(f, lambda t: t[DRAFT_IDS].neg_()), "are not 96 ascending ids below 384"),
        (lambda f: weights(f, lambda t: t.update({DRAFT_IDS: t[DRAFT_IDS][:9].clone()})), "are not 96 ascending ids"),
        (
            lambda f: weights(f, lambda t: t.update({FIRST + "eh_proj.weight": torch.zeros(64, 64)})),
            r"eh_proj.weight in .* has shape \(64, 64\), and .* asks for \(64, 128\)",
        ),
        (
            lambda f: weights(f, lambda t: t.update({FIRST + "mlp.up_proj.weight": torch.zeros(96, 64)})),
            r"up_proj.weight in .* has shape \(96, 64\), and .* asks for \(128, 64\)",
        ),
        (lambda f: weights(f, lambda t: t.update({"stray": torch.zeros(2)})), "stray in .* asks for no such tensor"),
    ],
)
def test_damaged_heads_are_refused(
    break_it: Callable[[Path], object], words: str, heads: Path, tiny_llama_dir: Path
) -> None:
    break_it(heads)
    with pytest.raises(ConfigError, match=words):
        load_heads(heads, find_model(str(tiny_llama_dir))[0])


@pytest.mark.parametrize("change", ["one number", "another type"])
def test_heads_of_another_model_are_refused(change: str, heads: Path, tmp_path: Path) -> None:
    other = write_llama(tmp_path / "other")
    path = max(other.glob("*.safetensors"))
    tensors = load_file(path)
    name = min(tensors)
    if change == "one number":
        tensors[name].view(-1)[0] += 1
    else:
        tensors[name] = tensors[name].bfloat16()
    save_file(tensors, path)
    with pytest.raises(ConfigError, match=r"were trained for .*, and .* has digest .*: serve that model"):
        load_heads(heads, find_model(str(other))[0])


def test_the_same_model_elsewhere_is_the_same(heads: Path, tiny_llama_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_llama_dir, tmp_path / "copy")
    copy, base = find_model(str(tmp_path / "copy"))[0], find_model(str(tiny_llama_dir))[0]
    assert digest_of(copy) == digest_of(base)
    assert load_heads(heads, copy).card.base.name == str(tiny_llama_dir)


def test_the_source_has_the_model_its_heads_and_rows_of_the_head(heads: Path, tiny_llama_dir: Path) -> None:
    base, _ = find_model(str(tiny_llama_dir))
    found = load_heads(heads, base)
    stored = load_file(heads / "heads.safetensors")
    source = found.source
    assert set(source.names()) == {*base.names(), *stored.keys(), DRAFT_HEAD} - {DRAFT_IDS}
    rows = base.read("lm_head.weight")[found.draft_ids.long()]
    assert source.shape(DRAFT_HEAD) == (96, 64)
    assert torch.equal(source.read(DRAFT_HEAD), rows)
    assert torch.equal(source.read(DRAFT_HEAD, slice(10, 30), slice(3, 60)), rows[10:30, 3:60])
    name = FIRST + "eh_proj.weight"
    assert torch.equal(source.read(name, slice(5, 9), slice(64, 128)), stored[name][5:9, 64:])
    assert torch.equal(source.read("model.norm.weight"), base.read("model.norm.weight"))
    assert {source.dtype(n) for n in (DRAFT_HEAD, name)} == {"float32"}
    assert source.size_bytes > base.size_bytes
    assert (source.eos_ids, source.config) == (base.eos_ids, base.config)
