"""SmolLM3: Llama with layers that do not see positions; these alone have windows, where there are any.

Source: Bakouch et al. 2025 (the SmolLM3 report); Yang et al. 2025 (arXiv 2501.18795) for layers without rope.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from core.model.attention import Unturned
from core.model.decoder import Decoder, DecoderLayer, Parts
from core.model.decoder_config import DecoderConfig, only, read_decoder, read_windows, required
from core.model.gguf_source import unpermute_qk
from core.model.layers import Builder
from core.model.spec import ModelSpec
from core.plugin import hookimpl

API = (1, 0)


@dataclass(frozen=True, kw_only=True)
class SmolLM3Config(DecoderConfig):
    """`turned`: per layer, whether rope turns its heads."""

    turned: tuple[bool, ...]
    attention_bias: bool
    mlp_bias: bool


def read_config(raw: Mapping[str, Any], max_len: int | None) -> SmolLM3Config:
    """Raises ConfigError for an activation, rope scaling or kind of attention that is not served."""
    only("smollm3", raw, "hidden_act", "silu")
    interval, layers = raw.get("no_rope_layer_interval", 4), required(raw, "num_hidden_layers")
    turned = raw.get("no_rope_layers") or [(i + 1) % interval for i in range(layers)]
    window = raw.get("sliding_window") if raw.get("use_sliding_window") else None
    windows = read_windows("smollm3", raw, window, lambda i: window is not None and not turned[i])
    return SmolLM3Config(
        **read_decoder(raw, max_len, windows=windows, tied=True),
        turned=tuple(map(bool, turned[:layers])),
        attention_bias=raw.get("attention_bias", False),
        mlp_bias=raw.get("mlp_bias", False),
    )


def build(config: SmolLM3Config, b: Builder) -> Decoder:
    def layer(parts: Parts) -> DecoderLayer:
        turn = parts.rotary() if config.turned[parts.index] else Unturned()
        qkv, out = parts.qkv(config.attention_bias), parts.out(config.attention_bias)
        gate_up, down = parts.gate_up(config.mlp_bias), parts.down(config.mlp_bias)
        return DecoderLayer(
            parts.attention(turn, qkv=qkv, out=out),
            parts.add_norm("post_attention_layernorm"),
            parts.mlp(gate_up=gate_up, down=down),
        )

    return Decoder(config, b, layer)


@hookimpl
def core_models() -> list[ModelSpec]:
    return [
        ModelSpec(
            architectures=("SmolLM3ForCausalLM",),
            read_config=read_config,
            build=build,
            gguf_arch="smollm3",
            gguf_fix=unpermute_qk,
        )
    ]
