"""Random checkpoints of each family, small enough to make anew: windows shorter than the texts, and every part used."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import write_tokenizer


@dataclass(frozen=True)
class Family:
    """`name` as transformers' classes begin; `config` what the tests set."""

    name: str
    config: dict[str, Any] = field(default_factory=dict)


_SHARED: dict[str, Any] = {
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.1,
}

FAMILIES = {
    "mistral": Family("Mistral", {"sliding_window": 20}),
    "qwen2": Family(
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 33, "max_window_layers": 2, "tie_word_embeddings": True},
    ),
    "qwen3": Family("Qwen3", {"head_dim": 24, "attention_bias": True}),
    "gemma3": Family(
        "Gemma3",
        {
            "sliding_window": 20,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
            "query_pre_attn_scalar": 24,
            "final_logit_softcapping": 3.0,
            "tie_word_embeddings": True,
        },
    ),
    "phi3": Family(
        "Phi3",
        {
            "sliding_window": 17,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        },
    ),
    "smollm3": Family(
        "SmolLM3",
        {
            "no_rope_layers": [1, 0, 1, 0],
            "use_sliding_window": True,
            "sliding_window": 20,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
}


def write_family(folder: Path, family: str, **config: Any) -> Path:
    """A checkpoint folder. Norms and biases are random too, or a mistake in them would not show."""
    import torch
    import transformers

    name, settings = FAMILIES[family].name, {**_SHARED, **FAMILIES[family].config, **config}
    kind = getattr(transformers, f"{name}TextConfig" if family == "gemma3" else f"{name}Config")
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(kind(**settings))
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            if "norm" in key:
                tensor.normal_(0.0 if family == "gemma3" else 1.0, 0.1)
            if key.endswith("bias"):
                tensor.normal_(0.0, 0.1)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def declare_pooling(
    folder: Path, mode: str = "pooling_mode_lasttoken", normalize: bool = True, more: tuple[str, ...] = ()
) -> Path:
    """Makes a checkpoint one that declares embeddings, with the files that sentence-transformers writes."""
    names = ["Transformer", "Pooling", *more, *["Normalize"] * normalize]
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{name}" if i else "",
            "type": f"sentence_transformers.models.{name}",
        }
        for i, name in enumerate(names)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    config = {f"pooling_mode_{each}": mode == f"pooling_mode_{each}" for each in modes}
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 64, **config, "include_prompt": True})
    )
    return folder


def read_raw(folder: Path) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return raw
