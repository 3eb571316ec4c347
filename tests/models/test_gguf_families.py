"""GGUF files of each family, written as published conversion writes them: the same config and the same tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from core.engine.models import find_model
from core.model.convert import convert
from tests.core.engine.oracle import Recorded, worst_error
from tests.models.tiny import read_raw, write_family

# What each family's conversion does beyond renaming, and what it writes beyond what all do.
INTERLEAVED = ("smollm3",)
METADATA: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "qwen3": {},
    "gemma3": {"attention.sliding_window": 20, "final_logit_softcapping": 3.0},
    "phi3": {"attention.sliding_window": 17, "rope.dimension_count": 8},
    "smollm3": {},
}
# What the format cannot say: checkpoints of these families are written so that nothing of it differs.
PLAIN: dict[str, dict[str, Any]] = {
    "qwen2": {"use_sliding_window": False},
    "qwen3": {"attention_bias": False},
    "gemma3": {"num_hidden_layers": 7, "layer_types": None, "query_pre_attn_scalar": 16},
    "phi3": {},
    "smollm3": {"use_sliding_window": False, "no_rope_layers": None, "attention_bias": False, "mlp_bias": False},
}


def write_gguf(path: Path, folder: Path, family: str) -> Path:
    raw = read_raw(folder)
    writer = gguf.GGUFWriter(path, family)
    _add_metadata(writer, raw, family)
    _add_tokenizer(writer, folder)
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == family)
    names = gguf.get_tensor_name_map(arch, raw["num_hidden_layers"])
    for shard in folder.glob("*.safetensors"):
        for name, array in load_file(shard).items():
            target = names.get_name(name, try_suffixes=(".weight", ".bias"))
            writer.add_tensor(target, np.ascontiguousarray(_converted(name, array, raw, family)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_metadata(writer: gguf.GGUFWriter, raw: dict[str, Any], family: str) -> None:
    writer.add_embedding_length(raw["hidden_size"])
    writer.add_block_count(raw["num_hidden_layers"])
    writer.add_feed_forward_length(raw["intermediate_size"])
    writer.add_head_count(raw["num_attention_heads"])
    writer.add_head_count_kv(raw["num_key_value_heads"])
    writer.add_key_length(raw["head_dim"])
    writer.add_layer_norm_rms_eps(raw["rms_norm_eps"])
    writer.add_context_length(raw["max_position_embeddings"])
    rope = raw["rope_parameters"]
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    for key, value in METADATA[family].items():
        add = writer.add_uint32 if isinstance(value, int) else writer.add_float32
        add(f"{family}.{key}", value)


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path) -> None:
    backend = json.loads((folder / "tokenizer.json").read_text())
    vocab = backend["model"]["vocab"]
    special = {token["content"] for token in backend["added_tokens"]}
    tokens = sorted(vocab, key=vocab.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in backend["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)


def _converted(name: str, array: np.ndarray, raw: dict[str, Any], family: str) -> np.ndarray:
    if family == "gemma3" and name.endswith("norm.weight"):
        return array + np.float32(1)
    for part, key in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
        if family in INTERLEAVED and part in name:
            halves = array.reshape(raw[key], 2, array.shape[0] // raw[key] // 2, *array.shape[1:])
            return halves.swapaxes(1, 2).reshape(array.shape)
    return array


@pytest.mark.parametrize("family", METADATA)
def test_a_file_is_the_checkpoint_that_it_was_made_from(family: str, tmp_path: Path) -> None:
    """Tensors and logits, and the folder that `core convert` makes is one that transformers reads the same."""
    folder = write_family(tmp_path / "folder", family, **PLAIN[family])
    path = write_gguf(tmp_path / "model.gguf", folder, family)
    ours, theirs = find_model(str(path))[0], find_model(str(folder))[0]
    assert set(ours.names()) == set(theirs.names())
    for name in ours.names():
        assert torch.allclose(ours.read(name), theirs.read(name), atol=1e-6), name
    prompts = [[3 + i % 380 for i in range(60)], [7, 8, 9]]
    engine = Recorded(path, device="cpu", dtype="float32", num_kv_blocks=20, max_model_len=128)
    runs = engine.run(prompts, max_tokens=5)
    engine.close()
    assert worst_error(folder, runs) <= 1e-4
    convert(ours, tmp_path / "converted", "float32")
    assert worst_error(tmp_path / "converted", runs) <= 1e-4
