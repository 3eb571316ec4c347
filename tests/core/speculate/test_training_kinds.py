"""Every family can be given heads, on every device that runs torch eagerly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core.engine.models import find_model
from core.errors import ConfigError
from core.kernels.bind import KernelSet
from core.model.layers import Builder
from core.model.load import Loader
from core.model.mtp import DraftHeads, block_like
from core.model.spec import Shard
from core.plugin import loader
from core.plugin.facts import Need
from core.plugin.opened import open_device
from core.speculate.card import Card
from core.speculate.heads import load_heads
from core.speculate.train import train
from tests.core.speculate.small import recipe, silent
from tests.models.tiny import FAMILIES, write_family
from tests.plugins import BARE_PLUGIN, install_plugin

LAYERS = {"gemma3": (2, 2), "qwen2": (0, 1), "smollm3": (0, 2)}
"""Of families whose layers differ: the first and the last of those that see everything. Else they are the ends."""


def brief(model: Path, folder: Path, **other: Any) -> Card:
    made = recipe(model, num_texts=4, num_held_out=2, row_tokens=32, steps=2, batch=2, draft_vocab=40, **other)
    return train(made, folder, resume=False, tell=silent)


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_of_each_family_load(family: str, tmp_path: Path) -> None:
    """Names, shapes and rounding are those that the layers declare; weights change by training alone."""
    model = write_family(tmp_path / "model", family)
    source, spec = find_model(str(model))
    # Where a text is shorter than the windows, all layers keep the same; their ropes differ all the same.
    for max_len in (None, 16, 32, 1024):
        assert block_like(spec.read_config(source.config, max_len)) == LAYERS.get(family, (0, 3))[0]
    card = brief(model, tmp_path / "heads", learning_rate=1e-9)
    heads = load_heads(tmp_path / "heads", source)
    opened = open_device(loader.choose(loader.discover(), "cpu"))
    kernels = KernelSet(opened.implementations, {}, Need("float32", page_tokens=16, max_seqs=8, max_tokens=64))
    builder = Builder(kernels, Shard(), "float32", 16, 64)
    base = spec.build(spec.read_config(source.config, 64), builder)
    before = set(builder.params)
    draft = DraftHeads(base, builder, card.num_layers, card.draft_vocab)
    weights = Loader(
        heads.source, opened.device, opened.where, kernels, dtype="float32", shard=Shard()
    ).load(builder.params)  # fmt: skip
    assert [group.lookahead for group in draft.groups] == [1, 2]
    own = {name: param for name, param in builder.params.items() if name not in before}
    assert all(tuple(weights[name].shape) == param.shape for name, param in own.items() if not param.packed)
    like, copied_from = LAYERS.get(family, (0, 3))
    assert card.block_like == like
    copied = source.read(f"model.layers.{copied_from}.input_layernorm.weight")
    add = own["layers.4.input_layernorm"].add
    assert (weights["layers.4.input_layernorm"] - copied - add).abs().max() < 1e-5


def test_a_device_with_references_alone_trains(
    tiny_llama_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_plugin(monkeypatch, tmp_path / "bare", "bare", BARE_PLUGIN)
    assert brief(tiny_llama_dir, tmp_path / "heads", device="bare").made_with["device"] == "bare"


def test_a_device_that_compiles_steps_is_refused(
    tiny_llama_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = "implicit=False, shapes=ShapePolicy((2048,), (64,), (8,))"
    source = BARE_PLUGIN.replace("implicit=False", shapes).replace("Memory, hookimpl", "Memory, ShapePolicy, hookimpl")
    install_plugin(monkeypatch, tmp_path / "bare", "bare", source)
    with pytest.raises(ConfigError, match="device bare takes steps of certain shapes only"):
        brief(tiny_llama_dir, tmp_path / "heads", device="bare")
    assert not (tmp_path / "heads" / "heads.json").exists()


def test_bfloat16_trains(tiny_llama_dir: Path, tmp_path: Path) -> None:
    card = brief(tiny_llama_dir, tmp_path / "heads", dtype="bfloat16")
    heads = load_heads(tmp_path / "heads", find_model(str(tiny_llama_dir))[0])
    assert card.made_with["dtype"] == "bfloat16"
    assert heads.source.dtype("model.layers.3.eh_proj.weight") == "bfloat16"
