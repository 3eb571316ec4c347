"""Checkpoint folders: what is read, and every way a folder can be wrong."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from core.errors import ConfigError
from core.model.safetensors_source import SafetensorsSource
from tests.core.model.mapped import resident_bytes


@pytest.fixture
def folder(tiny_llama_dir: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model, to be spoilt."""
    return Path(shutil.copytree(tiny_llama_dir, tmp_path / "copy"))


def edit(path: Path, **values: object) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **values}))


def test_same_tensors_as_transformers(tiny_llama_dir: Path) -> None:
    source = SafetensorsSource(tiny_llama_dir, "tiny")
    expected = AutoModelForCausalLM.from_pretrained(tiny_llama_dir).state_dict()
    assert len(list(tiny_llama_dir.glob("*.safetensors"))) > 2
    assert set(source.names()) == set(expected)
    for name, tensor in expected.items():
        assert source.shape(name) == tuple(tensor.shape)
        assert source.dtype(name) == "float32"
        assert torch.equal(source.read(name), tensor), name
    assert source.size_bytes == sum(path.stat().st_size for path in tiny_llama_dir.glob("*.safetensors"))


@pytest.mark.parametrize(
    ("rows", "columns"),
    [(slice(3, 20), None), (None, slice(16, 48)), (slice(60, 64), slice(1, 2)), (slice(64, 64), None)],
)
def test_part_of_a_tensor(rows: slice | None, columns: slice | None, tiny_llama_dir: Path) -> None:
    source = SafetensorsSource(tiny_llama_dir, "tiny")
    name = "model.layers.0.self_attn.q_proj.weight"
    expected = source.read(name)[rows or slice(None)][:, columns or slice(None)]
    assert torch.equal(source.read(name, rows, columns), expected)


def test_gives_back_what_was_read(folder: Path) -> None:
    file = folder / "model.safetensors"
    (folder / "model.safetensors.index.json").unlink()
    save_file({"model.norm.weight": torch.ones(2**22), "lm_head.weight": torch.ones(2, 2**21)}, file)
    source = SafetensorsSource(folder, "tiny")
    tensors = [source.read(name) for name in source.names()]
    assert sum(float(tensor.sum()) for tensor in tensors) == 2**23
    assert resident_bytes(file) > 2**24
    del tensors
    assert resident_bytes(file) < 2**20


def test_what_it_says_of_the_model(tiny_llama_dir: Path) -> None:
    source = SafetensorsSource(tiny_llama_dir, "tiny")
    assert source.name == "tiny"
    assert source.config["architectures"] == ["LlamaForCausalLM"]
    assert source.eos_ids == [2]
    assert source.special_tokens == {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    assert source.chat_template is not None
    assert source.tokenizer() is source.tokenizer()


def test_eos_ids_of_every_file_count(folder: Path) -> None:
    edit(folder / "generation_config.json", eos_token_id=[7, 9])
    edit(folder / "config.json", eos_token_id=8)
    edit(folder / "tokenizer_config.json", eos_token={"content": "<|im_start|>"})
    assert SafetensorsSource(folder, "m").eos_ids == [1, 7, 8, 9]


def test_chat_template_file_wins_and_default_of_several(folder: Path) -> None:
    several = [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]
    edit(folder / "tokenizer_config.json", chat_template=several)
    assert SafetensorsSource(folder, "m").chat_template == "D"
    (folder / "chat_template.jinja").write_text("J")
    assert SafetensorsSource(folder, "m").chat_template == "J"


def test_one_file_without_index(folder: Path) -> None:
    tensors = {name: tensor for path in folder.glob("model-*") for name, tensor in load_file(path).items()}
    for path in folder.glob("model*"):
        path.unlink()
    save_file(tensors, folder / "model.safetensors")
    save_file({"other": torch.zeros(1)}, folder / "consolidated.safetensors")
    assert set(SafetensorsSource(folder, "m").names()) == set(tensors)


def test_low_precision_types_are_read_as_stored(folder: Path) -> None:
    for path in folder.glob("model*"):
        path.unlink()
    tensors = {"a": torch.randn(4, 4).bfloat16(), "b": torch.randn(4).half(), "c": torch.arange(3)}
    save_file(tensors, folder / "model.safetensors")
    source = SafetensorsSource(folder, "m")
    assert [source.dtype("a"), source.dtype("b")] == ["bfloat16", "float16"]
    assert torch.equal(source.read("a", slice(1, 3)), tensors["a"][1:3])
    with pytest.raises(ConfigError, match=r"tensor c of .* is of type I64: core reads F32"):
        source.read("c")


def without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def config_is_a_list(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


def missing_shard(folder: Path) -> None:
    (folder / "model-00002-of-00004.safetensors").unlink()


def cut_shard(folder: Path) -> None:
    path = folder / "model-00003-of-00004.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def pickle_only(folder: Path) -> None:
    for path in folder.glob("model*"):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")


def no_weights(folder: Path) -> None:
    for path in folder.glob("model*"):
        path.unlink()


def quantised(folder: Path) -> None:
    edit(folder / "config.json", quantization_config={"quant_method": "awq"})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without_config, r"has no config\.json"),
        (broken_config, r"config\.json is not readable as JSON"),
        (config_is_a_list, r"config\.json holds a list, not an object"),
        (missing_shard, r"names model-00002-of-00004\.safetensors, which is missing"),
        (cut_shard, r"model-00003-of-00004\.safetensors is cut short or damaged"),
        (pickle_only, r"pickle \(pytorch_model\.bin\).*convert them to safetensors"),
        (no_weights, r"has no \*\.safetensors"),
        (quantised, r"quantised with 'awq'"),
    ],
)
def test_refused(spoil: Callable[[Path], None], message: str, folder: Path) -> None:
    spoil(folder)
    with pytest.raises(ConfigError, match=message) as caught:
        SafetensorsSource(folder, "m")
    assert "\n" not in str(caught.value)


def test_missing_tensor_is_named(tiny_llama_dir: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no tensor model\.layers\.9\.x: it is incomplete"):
        SafetensorsSource(tiny_llama_dir, "m").read("model.layers.9.x")
