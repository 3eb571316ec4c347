"""Phi-3 and Phi-4: Llama whose checkpoints join projections in one tensor; all layers may see a window only.

The variants for long contexts scale rope by the length of a sequence ("longrope"): refused by name.
Source: Abdin et al. 2024 (arXiv 2404.14219).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.model.decoder import Decoder, DecoderLayer, Parts
from core.model.decoder_config import DecoderConfig, only, read_decoder, required
from core.model.layers import Builder
from core.model.spec import ModelSpec
from core.plugin import hookimpl

API = (1, 0)


def read_config(raw: Mapping[str, Any], max_len: int | None) -> DecoderConfig:
    """Raises ConfigError for an activation or rope scaling that is not served."""
    only("phi3", raw, "hidden_act", "silu")
    windows = [raw.get("sliding_window")] * required(raw, "num_hidden_layers")
    return DecoderConfig(**read_decoder(raw, max_len, windows=windows))


def build(config: DecoderConfig, b: Builder) -> Decoder:
    def layer(parts: Parts) -> DecoderLayer:
        hidden, sizes, inner = config.hidden_size, parts.qkv_sizes, config.inner_size
        qkv = parts.linear("qkv", ["self_attn.qkv_proj"], sum(sizes), hidden, "rows", sections=sizes)
        gate_up = parts.linear("gate_up", ["mlp.gate_up_proj"], 2 * inner, hidden, "rows", sections=(inner, inner))
        return DecoderLayer(
            parts.attention(parts.rotary(), qkv=qkv),
            parts.add_norm("post_attention_layernorm"),
            parts.mlp(gate_up=gate_up),
        )

    return Decoder(config, b, layer)


@hookimpl
def core_models() -> list[ModelSpec]:
    return [ModelSpec(architectures=("Phi3ForCausalLM",), read_config=read_config, build=build, gguf_arch="phi3")]
