"""Mistral: Llama whose layers may all see a window of tokens only.

GGUF files of Mistral are of family llama. Source: Jiang et al. 2023 (arXiv 2310.06825).
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
    """Raises ConfigError for an activation, rope scaling or mix of layers that is not served."""
    only("mistral", raw, "hidden_act", "silu")
    only("mistral", raw, "layer_types", None)
    windows = [raw.get("sliding_window")] * required(raw, "num_hidden_layers")
    return DecoderConfig(**read_decoder(raw, max_len, windows=windows))


def build(config: DecoderConfig, b: Builder) -> Decoder:
    def layer(parts: Parts) -> DecoderLayer:
        return DecoderLayer(parts.attention(parts.rotary()), parts.add_norm("post_attention_layernorm"), parts.mlp())

    return Decoder(config, b, layer)


@hookimpl
def core_models() -> list[ModelSpec]:
    return [ModelSpec(architectures=("MistralForCausalLM", "MistralModel"), read_config=read_config, build=build)]
