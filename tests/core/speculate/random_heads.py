"""Draft heads with random weights, in files, for any small model."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import torch
from safetensors.torch import save_file

from core.engine.models import find_model
from core.kernels.bind import KernelSet
from core.model.decoder import head_source
from core.model.digest import digest_of
from core.model.layers import Builder
from core.model.mtp import DRAFT_HEAD, DraftHeads, block_like
from core.model.spec import Shard
from core.plugin.facts import Need
from core.speculate.card import FORMAT, WEIGHTS, Acceptance, Base, Card, sha256_of, write_card
from core.speculate.heads import DRAFT_IDS


def write_heads(folder: Path, model: Path, num_layers: int) -> Path:
    """Every third id is in the draft vocabulary."""
    source, spec = find_model(str(model))
    config = spec.read_config(source.config, None)
    builder = Builder(KernelSet((), {}, Need("float32")), Shard(), "float32", 16, 128)
    built = spec.build(config, builder)
    before = set(builder.params)
    DraftHeads(built, builder, num_layers, 8)
    names = {s.name for name, param in builder.params.items() if name not in before for s in param.sources}
    tensors = {name: _random(name, _shape(name, source, config)) for name in sorted(names - {DRAFT_HEAD})}
    ids = torch.arange(1, config.vocab_size, 3, dtype=torch.int32)
    folder.mkdir()
    save_file({**tensors, DRAFT_IDS: ids}, folder / WEIGHTS)
    base = Base(
        name=source.name, digest=digest_of(source), architecture=source.config["architectures"][0],
        hidden_size=config.hidden_size, vocab_size=config.vocab_size,
    )  # fmt: skip
    acceptance = Acceptance(per_position=[], tokens_per_step=1, num_positions=0, loss=[], in_vocabulary=1)
    card = Card(
        format=FORMAT, weights_sha256=sha256_of(folder / WEIGHTS), base=base, num_layers=num_layers,
        block_like=block_like(config), head=head_source(config), draft_vocab=len(ids), recipe={}, data={}, made_with={},
        loss=[], acceptance=acceptance,
    )  # fmt: skip
    write_card(folder, card)
    return folder


def _shape(name, source, config) -> tuple[int, ...]:
    part = name.split(".", 3)[3]
    size = config.hidden_size
    if part == "eh_proj.weight":
        return size, 2 * size
    twin = f"model.layers.{block_like(config)}.{part}"
    return tuple(source.shape(twin)) if twin in source.names() else (size,)


def _random(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    centre = 1.0 if len(shape) == 1 else 0.0
    return torch.empty(shape).normal_(centre, 0.2, generator=torch.Generator().manual_seed(crc32(name.encode())))
