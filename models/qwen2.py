"""Qwen 2 and 2.5: Llama with biases on queries, keys and values; windows in the upper layers of some.

Source: Yang et al. 2024 (arXiv 2407.10671).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.model.decoder import Decoder, DecoderLayer, Parts
from core.model.decoder_config import DecoderConfig, only, read_decoder, read_windows
from core.model.layers import Builder
from core.model.spec import ModelSpec
from core.plugin import hookimpl

API = (1, 0)


def read_config(raw: Mapping[str, Any], max_len: int | None) -> DecoderConfig:
    """Raises ConfigError for an activation, rope scaling or kind of attention that is not served."""
    only("qwen2", raw, "hidden_act", "silu")
    window = raw.get("sliding_window") if raw.get("use_sliding_window") else None
    first = raw.get("max_window_layers", 28)
    windows = read_windows("qwen2", raw, window, lambda i: window is not None and i >= first)
    return DecoderConfig(**read_decoder(raw, max_len, windows=windows))


def build(config: DecoderConfig, b: Builder) -> Decoder:
    def layer(parts: Parts) -> DecoderLayer:
        return DecoderLayer(
            parts.attention(parts.rotary(), qkv=parts.qkv(bias=True)),
            parts.add_norm("post_attention_layernorm"),
            parts.mlp(),
        )

    return Decoder(config, b, layer)


@hookimpl
def core_models() -> list[ModelSpec]:
    return [
        ModelSpec(
            architectures=("Qwen2ForCausalLM", "Qwen2Model"), read_config=read_config, build=build, gguf_arch="qwen2"
        ),
    ]
