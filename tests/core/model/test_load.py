"""From files to weights: ranks together hold the whole, and files that do not fit their config are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from core.errors import ConfigError
from core.kernels.bind import KernelSet
from core.kernels.row import Implementation
from core.model.layers import Builder, Param
from core.model.load import Loader
from core.model.safetensors_source import SafetensorsSource
from core.model.spec import Shard
from core.plugin import Event, Need
from devices.cpu.device import CpuDevice
from models.llama import Llama, read_config


class Late(Event):
    """A copy that lands when the host waits for it."""

    def __init__(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        self._dst, self._src = dst, src

    def synchronize(self) -> None:
        self._dst.copy_(self._src)


class Dirty(CpuDevice):
    """Fresh memory holds no numbers."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.full(shape, float("nan") if dtype.is_floating_point else 85, dtype=dtype)

    def h2d(self, dst: torch.Tensor, src: torch.Tensor) -> Event:
        return Late(dst, src)


class Load:
    """A model's parameters for one rank, and its weights."""

    def __init__(self, folder: Path, shard: Shard | None = None, dtype: str = "float32", **kernels: Any) -> None:
        shard = shard or Shard()
        source = SafetensorsSource(folder, "tiny")
        some = [Implementation(row, kernel, "acme") for row, kernel in kernels.items()]
        builder = Builder(KernelSet(some, {}, Need()), shard, dtype, 16, max_len=64)
        Llama(read_config(source.config, None), builder)
        self.source = source
        self.params: dict[str, Param] = builder.params
        self.progress: list[tuple[int, int]] = []
        loader = Loader(
            source, Dirty(), torch.device("cpu"), builder.kernels, dtype=dtype, shard=shard,
            progress=lambda done, total: self.progress.append((done, total)),
        )  # fmt: skip
        self.weights = loader.load(self.params)
        self.notes = loader.notes(self.params)


@pytest.fixture
def folder(tiny_llama_dir: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model, to be spoilt."""
    return Path(shutil.copytree(tiny_llama_dir, tmp_path / "copy"))


def edit_config(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Write all tensors anew, in one file."""
    tensors: dict[str, torch.Tensor] = {}
    for path in folder.glob("*.safetensors"):
        tensors |= load_file(path)
        path.unlink()
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def test_one_rank_has_every_tensor(tiny_llama_dir: Path) -> None:
    """In the order in which parameters name them, fused ones one below the other."""
    load = Load(tiny_llama_dir)
    for name, param in load.params.items():
        assert load.weights[name].shape == param.shape
        if param.sources:
            whole = torch.cat([load.source.read(source.name) for source in param.sources])
            assert torch.equal(load.weights[name], whole), name
    assert load.notes == []
    assert {s.name for p in load.params.values() for s in p.sources} == set(load.source.names())


@pytest.mark.parametrize("config", [{}, {"vocab_size": 385}, {"attention_bias": True, "mlp_bias": True}], ids=str)
def test_two_ranks_together_have_the_whole(config: dict[str, Any], make_llama: Callable[..., Path]) -> None:
    folder = make_llama(**config)
    ranks = [Load(folder, Shard(rank, 2)) for rank in (0, 1)]
    source = ranks[0].source
    for name, param in ranks[0].params.items():
        row = 0
        for part in param.sources:
            whole = source.read(part.name)
            held = [rank.weights[name] for rank in ranks if name in rank.weights]
            if part.axis == 0:
                share = -(-whole.shape[0] // 2)
                together = torch.cat([weight[row : row + share] for weight in held])
                assert torch.equal(together[: len(whole)], whole), name
                assert not together[len(whole) :].any(), "rows past the end are zero"
                row += share
            elif part.axis == 1:
                assert torch.equal(torch.cat(held, 1), whole), name
            else:
                assert all(torch.equal(weight, whole) for weight in held), name
    # A bias that is added to a sum over ranks is there once.
    once = set(ranks[0].params) - set(ranks[1].params)
    assert len(once) == (6 if "mlp_bias" in config else 0)
    assert all(name.endswith((".out.bias", ".down.bias")) for name in once)


def test_tied_weights_share_storage(make_llama: Callable[..., Path]) -> None:
    tied = Load(make_llama("tied", tie_word_embeddings=True))
    assert tied.weights["embed"].data_ptr() == tied.weights["head"].data_ptr()
    untied = Load(make_llama("untied"))
    assert untied.weights["embed"].data_ptr() != untied.weights["head"].data_ptr()


def test_weights_are_packed_and_tables_are_not(tiny_llama_dir: Path) -> None:
    load = Load(tiny_llama_dir, linear=print, pack_weight=lambda w, *, scheme: ("packed", scheme, w.shape))
    for name, param in load.params.items():
        assert (load.weights[name] == ("packed", "dense", param.shape)) if param.packed else load.weights[name].ndim
    assert load.params["head"].packed
    assert not load.params["embed"].packed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_are_in_the_dtype_of_the_plan(tiny_llama_dir: Path, dtype: str) -> None:
    load = Load(tiny_llama_dir, dtype=dtype)
    wanted = load.source.read("lm_head.weight").to(getattr(torch, dtype))
    assert torch.equal(load.weights["head"], wanted)
    assert {weight.dtype for weight in load.weights.values()} == {getattr(torch, dtype)}


def test_progress_reaches_the_total(tiny_llama_dir: Path) -> None:
    load = Load(tiny_llama_dir, dtype="bfloat16")
    done, totals = zip(*load.progress, strict=True)
    assert len(load.progress) == len(load.params)
    assert list(done) == sorted(done)
    assert done[-1] == totals[-1] == sum(w.numel() * 2 for w in load.weights.values())
    assert len(set(totals)) == 1


def test_tensors_that_nothing_takes_are_reported(folder: Path) -> None:
    edit_tensors(folder, lambda t: t.update({"model.layers.9.extra": torch.zeros(2), "a.first": torch.zeros(1)}))
    assert Load(folder).notes == ["2 tensors of the model are not used, such as a.first"]


@pytest.mark.parametrize("shard", [Shard(), Shard(1, 2)], ids=["one rank", "two ranks"])
@pytest.mark.parametrize("name", ["model.layers.1.mlp.down_proj.weight", "model.norm.weight", "lm_head.weight"])
def test_a_missing_tensor_is_named(folder: Path, name: str, shard: Shard) -> None:
    edit_tensors(folder, lambda t: t.pop(name))
    with pytest.raises(ConfigError, match=f"copy has no tensor {name}"):
        Load(folder, shard)


@pytest.mark.parametrize("shard", [Shard(), Shard(0, 2), Shard(1, 2)], ids=["one rank", "rank 0", "rank 1"])
@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"intermediate_size": 192}, "model.layers.0.mlp.gate_proj.weight"),
        ({"intermediate_size": 64}, "model.layers.0.mlp.gate_proj.weight|model.layers.0.mlp.up_proj.weight"),
        ({"hidden_size": 32}, "model.embed_tokens.weight"),
        ({"num_key_value_heads": 4}, "model.layers.0.self_attn.q_proj.weight"),
        ({"vocab_size": 400}, "model.embed_tokens.weight"),
        ({"vocab_size": 380}, "model.embed_tokens.weight"),
    ],
    ids=str,
)
def test_files_that_do_not_fit_their_config(folder: Path, config: dict[str, int], name: str, shard: Shard) -> None:
    edit_config(folder, **config)
    with pytest.raises(ConfigError, match=f"tiny: (tensor )?({name}).* do not belong together"):
        Load(folder, shard)
