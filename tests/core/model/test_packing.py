"""Weights that stay packed are the same weights: every part of them, on every rank, and the rest says why it is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from core.engine.models import find_model
from core.errors import ConfigError
from core.kernels.bind import KernelSet
from core.kernels.schemes import Q41Weight, Q80Weight
from core.model.layers import Builder, Source
from core.model.load import Loader
from core.model.packing import Packing
from core.model.source import ModelSource
from core.model.spec import Shard
from core.plugin import Need
from models.llama import Llama, read_config
from tests.core.model.test_load import Dirty

Make = Callable[..., Path]
DOWN = "model.layers.1.mlp.down_proj.weight"


class Packed:
    """A tiny llama's weights on one rank, packed where they can be."""

    def __init__(self, source: ModelSource, shard: Shard, packed: bool = True, native: Sequence[str] = ()) -> None:
        packing = Packing(source, shard, native)
        builder = Builder(KernelSet([], {}, Need()), shard, "float32", 16, max_len=64)
        if packed:
            builder.scheme = packing.scheme
        Llama(read_config(source.config, None), builder)
        self.params = builder.params
        self.progress: list[tuple[int, int]] = []
        loader = Loader(
            source, Dirty(), torch.device("cpu"), builder.kernels, dtype="float32", shard=shard,
            progress=lambda done, total: self.progress.append((done, total)),
        )  # fmt: skip
        self.weights = loader.load(self.params)
        self.notes = packing.notes(self.params.values(), "float32") if packed else []
        self.loader_notes = loader.notes(self.params)


def open_packed(path: Path, shard: Shard | None = None) -> tuple[Packed, dict[str, Any]]:
    """Packed weights of a rank, and the same dequantised by the loader."""
    source, _ = find_model(str(path))
    shard = shard or Shard()
    return Packed(source, shard), Packed(source, shard, packed=False).weights


def check(packed: Packed, dense: dict[str, Any]) -> None:
    for name, param in packed.params.items():
        weight = packed.weights[name]
        form = {"dense": torch.Tensor, "q4_1": Q41Weight, "q8_0": Q80Weight}[param.scheme]
        assert isinstance(weight, form), name
        wide = weight if isinstance(weight, torch.Tensor) else weight.dequantised()
        assert wide.shape == param.shape
        assert torch.equal(wide, dense[name]), name


@pytest.mark.parametrize(("kind", "scheme"), [("Q4_1", "q4_1"), ("Q4_0", "q4_1"), ("Q8_0", "q8_0")])
@pytest.mark.parametrize("config", [{}, {"vocab_size": 385}, {"attention_bias": True}], ids=str)
@pytest.mark.parametrize("shard", [Shard(), Shard(0, 2), Shard(1, 2)], ids=str)
def test_packed_weights_are_the_weights(
    kind: str, scheme: str, config: dict[str, Any], shard: Shard, make_llama: Make, make_gguf: Make
) -> None:
    """Permuted, joined, shared by rows and by columns, and ending in rows of zeros."""
    packed, dense = open_packed(make_gguf(make_llama(**config), kind), shard)
    check(packed, dense)
    assert {p.scheme for p in packed.params.values() if p.packed} == {scheme}
    assert packed.notes[0].startswith(f"13 of 13 weights stay packed, 13 in {scheme}: 0 MiB instead of ")


@pytest.mark.parametrize(("columns", "scheme"), [((0, 64), "q4_1"), ((64, 128), "q4_1"), ((30, 70), "dense")])
@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_columns_are_cut_between_blocks(
    kind: str, columns: tuple[int, int], scheme: str, make_llama: Make, make_gguf: Make
) -> None:
    scheme = "q8_0" if (kind, scheme) == ("Q8_0", "q4_1") else scheme
    source, _ = find_model(str(make_gguf(make_llama(), kind)))
    builder = Builder(KernelSet([], {}, Need()), Shard(), "float32", 16, max_len=64)
    builder.scheme = Packing(source, Shard()).scheme
    first, end = columns
    name, _ = builder.weight("part", (64, end - first), (Source(DOWN, columns=columns),))
    assert builder.params[name].scheme == scheme
    loader = Loader(source, Dirty(), torch.device("cpu"), builder.kernels, dtype="float32", shard=Shard())
    weight = loader.load(builder.params)[name]
    wide = weight if isinstance(weight, torch.Tensor) else weight.dequantised()
    assert torch.equal(wide, source.read(DOWN)[:, first:end])


def test_pieces_make_the_whole(make_llama: Make, make_gguf: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.model.load.PIECE_BYTES", 4 * 64 * 7)
    check(*open_packed(make_gguf(make_llama(), "Q4_1")))


@pytest.mark.parametrize(("kind", "block_bytes"), [("Q4_1", 20), ("Q4_0", 20), ("Q8_0", 34)])
def test_what_is_counted_is_what_is_held(kind: str, block_bytes: int, make_llama: Make, make_gguf: Make) -> None:
    packed, _ = open_packed(make_gguf(make_llama(), kind))
    parts = [part for w in packed.weights.values() for part in ([w] if isinstance(w, torch.Tensor) else w)]
    assert packed.progress[-1] == (sum(part.nbytes for part in parts),) * 2
    weight, (n, k) = packed.weights["layers.0.down.weight"], packed.params["layers.0.down.weight"].shape
    assert sum(part.nbytes for part in weight) == n * k // 32 * block_bytes
    # The embedding alone is dequantised: 384 rows of 64.
    [note] = packed.loader_notes
    assert note.startswith(f"weights in {kind} (1 tensors) are dequantised to float32, which takes 0 MiB more")


def test_a_tied_head_is_packed_beside_its_table(make_llama: Make, make_gguf: Make) -> None:
    packed, dense = open_packed(make_gguf(make_llama(tie_word_embeddings=True), "Q4_1"))
    check(packed, dense)
    assert isinstance(packed.weights["head"], Q41Weight)
    assert isinstance(packed.weights["embed"], torch.Tensor)


def stored_v(kind: str) -> dict[str, tuple[np.ndarray, str]]:
    """A file's tensors with one of another type, which is joined with others."""
    wide = np.linspace(-0.3, 0.3, 32 * 64, dtype=np.float32).reshape(32, 64)
    return {"blk.1.attn_v.weight": (gguf.quantize(wide, gguf.GGMLQuantizationType[kind]), kind)}


def test_joined_tensors_of_two_schemes_are_dequantised(make_llama: Make, make_gguf: Make) -> None:
    packed, dense = open_packed(make_gguf(make_llama(), "Q4_1", tensors=stored_v("Q8_0")))
    check(packed, dense)
    assert [name for name, p in packed.params.items() if p.packed and p.scheme == "dense"] == ["layers.1.qkv.weight"]
    assert packed.notes[0].endswith("; 1 dequantised: joined of q4_1 and q8_0")


def test_two_types_of_one_scheme_are_joined(make_llama: Make, make_gguf: Make) -> None:
    packed, dense = open_packed(make_gguf(make_llama(), "Q4_1", tensors=stored_v("Q4_0")))
    check(packed, dense)
    assert packed.params["layers.1.qkv.weight"].scheme == "q4_1"


def test_what_the_device_cannot_multiply_is_dequantised(make_llama: Make, make_gguf: Make) -> None:
    """Unless it can multiply nothing that is packed: then references do."""
    wide = np.ones((64, 128), np.float32)
    tensors = {"blk.1.ffn_down.weight": (gguf.quantize(wide, gguf.GGMLQuantizationType.Q8_0), "Q8_0")}
    source, _ = find_model(str(make_gguf(make_llama(), "Q4_1", tensors=tensors)))
    for native, scheme in ((("q4_1",), "dense"), (("q4_1", "q8_0"), "q8_0"), ((), "q8_0")):
        packed = Packed(source, Shard(), native=native)
        assert packed.params["layers.1.down.weight"].scheme == scheme
        assert packed.params["layers.0.down.weight"].scheme == "q4_1"
        assert packed.notes[0].endswith("; 1 dequantised: the device has no kernel for q8_0") == (scheme == "dense")


def test_columns_that_ranks_cut_within_a_block_are_dequantised(make_llama: Make, make_gguf: Make) -> None:
    path = make_gguf(make_llama(intermediate_size=96), "Q4_1")
    for shard in (Shard(0, 2), Shard(1, 2)):
        packed, dense = open_packed(path, shard)
        check(packed, dense)
        kept = [name for name, p in packed.params.items() if p.packed and p.scheme == "dense"]
        assert kept == [f"layers.{i}.down.weight" for i in range(3)]
        assert packed.notes[0].endswith("; 3 dequantised: 2 ranks do not share its columns in blocks of 32")
    check(*open_packed(path))


def test_nothing_that_can_stay_packed_is_refused(tiny_llama_dir: Path, make_gguf: Make) -> None:
    reasons = {tiny_llama_dir: "13 dequantised: holds float32", make_gguf(tiny_llama_dir, "Q5_0"): "holds Q5_0"}
    for path, reason in reasons.items():
        with pytest.raises(ConfigError, match=f"no weight of .* can stay so .*{reason}.*--weights dequantised"):
            open_packed(path)
