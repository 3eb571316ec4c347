"""Writes the config.json that a GGUF file's metadata stands for.

Owns the translation of names. Refuses rope settings that the metadata does not describe fully.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from core.errors import ConfigError
from core.model.gguf_reader import GgufFile

# Names of tokens that end a turn, for files that do not name theirs.
_END_OF_TURN = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<turn|>")
_CONTROL_TOKEN = 3

# general.file_type of files that are not quantised; the rest was mostly bfloat16 once.
_DTYPE_BY_FILE_TYPE = {0: "float32", 1: "float16"}

_LLAMA3_LEN, _LLAMA3_LOW, _LLAMA3_HIGH = 8192, 1.0, 4.0

_NUMBERS = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "intermediate_size": "feed_forward_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "max_position_embeddings": "context_length",
}


def read_config(file: GgufFile, architectures: tuple[str, ...]) -> dict[str, Any]:
    """A config.json for a model in a GGUF file, with the names that checkpoints of this family use.

    Raises: ConfigError when metadata is missing, or describes a rope that core cannot compute.
    """
    arch = file.require("general.architecture")
    config: dict[str, Any] = {name: file.require(f"{arch}.{key}") for name, key in _NUMBERS.items()}
    if any(isinstance(value, list) for value in config.values()):
        raise ConfigError(f"{file.path} has layers of different sizes: core serves models whose layers are alike")
    num_heads = config["num_attention_heads"]
    config["rms_norm_eps"] = _shortest_decimal(config["rms_norm_eps"])
    config["architectures"] = list(architectures[:1])
    config["model_type"] = arch
    config["torch_dtype"] = _DTYPE_BY_FILE_TYPE.get(file.get("general.file_type"), "bfloat16")
    config["num_key_value_heads"] = file.get(f"{arch}.attention.head_count_kv", num_heads)
    config["head_dim"] = file.get(f"{arch}.attention.key_length", config["hidden_size"] // num_heads)
    config["vocab_size"] = int(file.tensors["token_embd.weight"].shape[1])
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    if window := file.get(f"{arch}.attention.sliding_window"):
        config["sliding_window"] = window
    for name, key in (("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "padding")):
        config[name] = file.get(f"tokenizer.ggml.{key}_token_id")
    config.update(_read_rope(file, arch, config))
    return config


def read_eos_ids(file: GgufFile) -> list[int]:
    """Every id that ends the output: end of sequence, of turn and of message."""
    named = [file.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    ids = {i for i in named if i is not None}
    if named[1] is None:
        tokens, types = file.get("tokenizer.ggml.tokens", []), file.get("tokenizer.ggml.token_type", [])
        ids |= {tokens.index(token) for token in _END_OF_TURN if token in tokens}
        ids = {i for i in ids if i in named or (i < len(types) and types[i] == _CONTROL_TOKEN)}
    return sorted(ids)


def _shortest_decimal(value: float) -> float:
    """The decimal number that was meant: metadata is float32, config.json is not."""
    return float(str(np.float32(value)))


def _read_rope(file: GgufFile, arch: str, config: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {"rope_theta": _shortest_decimal(file.get(f"{arch}.rope.freq_base", 10000.0))}
    rotated = file.get(f"{arch}.rope.dimension_count", config["head_dim"])
    if rotated != config["head_dim"]:
        out["partial_rotary_factor"] = rotated / config["head_dim"]
    kind = file.get(f"{arch}.rope.scaling.type", "none")
    if "rope_freqs.weight" in file.tensors:
        out["rope_scaling"] = _llama3_scaling(file, {**config, **out})
    elif kind != "none":
        scaling = {
            "factor": file.get(f"{arch}.rope.scaling.factor"),
            "original_max_position_embeddings": file.get(f"{arch}.rope.scaling.original_context_length"),
            "attention_factor": file.get(f"{arch}.rope.scaling.attn_factor"),
            "beta_fast": file.get(f"{arch}.rope.scaling.yarn_beta_fast"),
            "beta_slow": file.get(f"{arch}.rope.scaling.yarn_beta_slow"),
        }
        out["rope_scaling"] = {"rope_type": kind, **{k: v for k, v in scaling.items() if v is not None}}
    return out


def _llama3_scaling(file: GgufFile, config: Mapping[str, Any]) -> dict[str, Any]:
    """Rope scaling of Llama 3.1 and later, which GGUF keeps as a tensor of divisors instead of metadata.

    Only the largest divisor varies between these models; that the borders are theirs is checked.
    """
    divisors = np.asarray(file.tensors["rope_freqs.weight"].data, dtype=np.float64)
    wavelengths = 2 * np.pi * config["rope_theta"] ** (np.arange(len(divisors)) / len(divisors))
    factor = float(divisors.max())
    short, long = wavelengths < _LLAMA3_LEN / _LLAMA3_HIGH, wavelengths > _LLAMA3_LEN / _LLAMA3_LOW
    kept, slowed, between = divisors[short], divisors[long], divisors[~short & ~long]
    if np.any(kept != 1) or np.any(slowed != factor) or np.any(between <= 1) or np.any(between >= factor):
        raise ConfigError(f"{file.path} scales rope by a table that is not Llama 3's: core cannot serve it")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LLAMA3_LOW,
        "high_freq_factor": _LLAMA3_HIGH,
        "original_max_position_embeddings": _LLAMA3_LEN,
    }
