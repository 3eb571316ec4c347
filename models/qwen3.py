"""Qwen 3, dense: each head of queries and keys is normed before rope turns it.

Source: Yang et al. 2025 (arXiv 2505.09388).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from core.model.decoder import Decoder, DecoderLayer, Parts
from core.model.decoder_config import DecoderConfig, only, read_decoder, read_windows
from core.model.layers import Builder
from core.model.spec import ModelSpec
from core.plugin import hookimpl

API = (1, 0)


@dataclass(frozen=True, kw_only=True)
class Qwen3Config(DecoderConfig):
    attention_bias: bool


def read_config(raw: Mapping[str, Any], max_len: int | None) -> Qwen3Config:
    """Raises ConfigError for an activation, rope scaling or kind of attention that is not served."""
    only("qwen3", raw, "hidden_act", "silu")
    window = raw.get("sliding_window") if raw.get("use_sliding_window") else None
    first = raw.get("max_window_layers", 28)
    windows = read_windows("qwen3", raw, window, lambda i: window is not None and i >= first)
    return Qwen3Config(
        **read_decoder(raw, max_len, windows=windows, head_size=128),
        attention_bias=raw.get("attention_bias", False),
    )


def build(config: Qwen3Config, b: Builder) -> Decoder:
    def layer(parts: Parts) -> DecoderLayer:
        qkv, out = parts.qkv(config.attention_bias), parts.out(config.attention_bias)
        return DecoderLayer(
            parts.attention(parts.normed_rotary(), qkv=qkv, out=out),
            parts.add_norm("post_attention_layernorm"),
            parts.mlp(),
        )

    return Decoder(config, b, layer)


@hookimpl
def core_models() -> list[ModelSpec]:
    return [
        ModelSpec(
            architectures=("Qwen3ForCausalLM", "Qwen3Model"), read_config=read_config, build=build, gguf_arch="qwen3"
        ),
    ]
