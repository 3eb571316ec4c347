"""Llama: pre-norm decoder with grouped-query attention, rotary positions and a gated MLP.

Source: Touvron et al. 2023 (arXiv 2307.09288); Grattafiori et al. 2024 (arXiv 2407.21783) for the llama3 rope scaling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from core.model.decoder import Decoder, DecoderLayer, Parts
from core.model.decoder_config import DecoderConfig, only, read_decoder
from core.model.gguf_source import unpermute_qk
from core.model.layers import Builder
from core.model.spec import ModelSpec
from core.plugin import hookimpl

API = (1, 0)


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(DecoderConfig):
    attention_bias: bool
    mlp_bias: bool


def read_config(raw: Mapping[str, Any], max_len: int | None) -> LlamaConfig:
    """Raises ConfigError for an activation or rope scaling that is not served."""
    only("llama", raw, "hidden_act", "silu")
    return LlamaConfig(
        **read_decoder(raw, max_len),
        attention_bias=raw.get("attention_bias", False),
        mlp_bias=raw.get("mlp_bias", False),
    )


class Llama(Decoder):
    def __init__(self, config: LlamaConfig, b: Builder) -> None:
        def layer(parts: Parts) -> DecoderLayer:
            qkv, out = parts.qkv(config.attention_bias), parts.out(config.attention_bias)
            gate_up, down = parts.gate_up(config.mlp_bias), parts.down(config.mlp_bias)
            return DecoderLayer(
                parts.attention(parts.rotary(), qkv=qkv, out=out),
                parts.add_norm("post_attention_layernorm"),
                parts.mlp(gate_up=gate_up, down=down),
            )

        super().__init__(config, b, layer)


@hookimpl
def core_models() -> list[ModelSpec]:
    return [
        ModelSpec(
            architectures=("LlamaForCausalLM", "LlamaModel"),
            read_config=read_config,
            build=Llama,
            gguf_arch="llama",
            gguf_fix=unpermute_qk,
        )
    ]
