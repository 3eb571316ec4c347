"""Llama: pre-norm decoder with grouped-query attention, rotary positions and a gated MLP.

Source: Touvron et al. 2023 (arXiv 2307.09288); Grattafiori et al. 2024 (arXiv 2407.21783) for the llama3 rope scaling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from core.errors import ConfigError
from core.kv.groups import KVGroup
from core.model.gguf_source import unpermute_rope
from core.model.layers import (
    AddRMSNorm,
    Attention,
    Builder,
    Embedding,
    GatedMLP,
    Head,
    LogitRows,
    Planes,
    RMSNorm,
    Rope,
    StepView,
    Weights,
)
from core.model.rope import RopeConfig, cos_sin_table, read_rope
from core.model.spec import ModelConfig, ModelSpec
from core.plugin import hookimpl

if TYPE_CHECKING:
    import torch

API = (1, 0)


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(ModelConfig):
    num_heads: int
    inner_size: int
    norm_eps: float
    rope: RopeConfig
    tied: bool
    attention_bias: bool
    mlp_bias: bool


def read_config(raw: Mapping[str, Any], max_len: int | None) -> LlamaConfig:
    """Raises ConfigError for an activation or rope scaling that is not served."""
    if raw.get("hidden_act", "silu") != "silu":
        raise ConfigError(f"hidden_act is {raw['hidden_act']}: the llama family is served with silu only")
    heads = raw["num_attention_heads"]
    kv_heads = raw.get("num_key_value_heads") or heads
    head_size = raw.get("head_dim") or raw["hidden_size"] // heads
    rope = read_rope({**raw, "head_dim": head_size}, max_len)
    return LlamaConfig(
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        num_layers=raw["num_hidden_layers"],
        max_len=raw["max_position_embeddings"],
        dtype=raw.get("dtype") or raw.get("torch_dtype") or "float32",
        kv_groups=(KVGroup(raw["num_hidden_layers"], kv_heads, head_size),),
        split={"KV heads": kv_heads, "attention heads": heads, "MLP columns": raw["intermediate_size"]},
        num_heads=heads,
        inner_size=raw["intermediate_size"],
        norm_eps=raw.get("rms_norm_eps", 1e-6),
        rope=rope,
        tied=raw.get("tie_word_embeddings", False),
        attention_bias=raw.get("attention_bias", False),
        mlp_bias=raw.get("mlp_bias", False),
    )


class Layer:
    def __init__(self, b: Builder, config: LlamaConfig, index: int) -> None:
        name, source = f"layers.{index}", f"model.layers.{index}"
        group = config.kv_groups[0]
        norm = partial(AddRMSNorm, b, size=config.hidden_size, eps=config.norm_eps)
        # The first layer's norm has nothing to add: it belongs to the model.
        if index:
            self.attn_norm = norm(name=f"{name}.attn_norm", source=f"{source}.input_layernorm.weight")
        self.mlp_norm = norm(name=f"{name}.mlp_norm", source=f"{source}.post_attention_layernorm.weight")
        self.attention = Attention(
            b,
            name,
            f"{source}.self_attn",
            group,
            hidden=config.hidden_size,
            num_heads=config.num_heads,
            scale=group.head_size**-0.5,
            bias=config.attention_bias,
            out_bias=config.attention_bias,
        )
        self.mlp = GatedMLP(
            b,
            name,
            f"{source}.mlp",
            hidden=config.hidden_size,
            inner=config.inner_size,
            act="silu",
            bias=config.mlp_bias,
        )


class Llama:
    """See `core.model.layers.Model`."""

    def __init__(self, config: LlamaConfig, b: Builder) -> None:
        size, vocab = config.hidden_size, config.vocab_size
        self.embed = Embedding(b, "embed", "model.embed_tokens.weight", vocab, size)
        table = partial(cos_sin_table, config.rope, b.max_len)
        self.rope = Rope(b, "rope", table, config.rope.dim)
        first = "model.layers.0.input_layernorm.weight"
        self.first_norm = RMSNorm(b, "layers.0.attn_norm", first, size, config.norm_eps)
        self.layers = [Layer(b, config, i) for i in range(config.num_layers)]
        self.rows = LogitRows(b)
        self.norm = AddRMSNorm(b, "norm", "model.norm.weight", size, config.norm_eps)
        source = "model.embed_tokens.weight" if config.tied else "lm_head.weight"
        self.head = Head(b, "head", source, vocab, size)

    def __call__(
        self, w: Weights, ids_T: torch.Tensor, step: StepView, plans: Sequence[Any], kv: list[list[Planes]]
    ) -> tuple[torch.Tensor, torch.Tensor, list[list[Planes]]]:
        sum_TE = self.embed(w, ids_T)
        cos_sin_TF = self.rope(w, step.positions)
        slots_T, plan, planes = step.slots[0], plans[0], list(kv[0])
        x_TE = self.first_norm(w, sum_TE)
        for i, layer in enumerate(self.layers):
            if i:
                x_TE, sum_TE = layer.attn_norm(w, x_TE, sum_TE)
            x_TE, planes[i] = layer.attention(w, x_TE, cos_sin_TF, self.rope.turn, slots_T, plan, planes[i])
            x_TE, sum_TE = layer.mlp_norm(w, x_TE, sum_TE)
            x_TE = layer.mlp(w, x_TE)
        x_LE, sum_LE = self.rows(x_TE, step.logit_rows), self.rows(sum_TE, step.logit_rows)
        hidden_LE, _ = self.norm(w, x_LE, sum_LE)
        return self.head(w, hidden_LE), hidden_LE, [planes]


def gguf_fix(name: str, tensor: np.ndarray, raw: Mapping[str, Any]) -> np.ndarray:
    """Conversion to GGUF interleaves the halves that rope turns; put them back."""
    if name.endswith("q_proj.weight") or name.endswith("q_proj.bias"):
        return unpermute_rope(tensor, raw["num_attention_heads"])
    if name.endswith("k_proj.weight") or name.endswith("k_proj.bias"):
        return unpermute_rope(tensor, raw["num_key_value_heads"])
    return tensor


@hookimpl
def core_models() -> list[ModelSpec]:
    return [
        ModelSpec(
            architectures=("LlamaForCausalLM",),
            read_config=read_config,
            build=Llama,
            gguf_arch="llama",
            gguf_fix=gguf_fix,
        )
    ]
