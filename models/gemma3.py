"""Gemma 3, text: most layers see a window and have a rope of their own; norms around attention and MLP.

Refuses the variants that read images, and attention in both directions. Source: Gemma Team 2025 (arXiv 2503.19786).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core.errors import ConfigError
from core.model.decoder import Decoder, DecoderLayer, Parts, embedding
from core.model.decoder_config import DecoderConfig, only, read_decoder, read_windows
from core.model.layers import Builder, Chain, Scale, Softcap
from core.model.rope import RopeConfig, read_rope
from core.model.spec import ModelSpec
from core.plugin import hookimpl

if TYPE_CHECKING:
    import numpy as np

API = (1, 0)
_HEAD_SIZE, _PATTERN = 256, 6
_GLOBAL_THETA, _LOCAL_THETA = 1_000_000.0, 10_000.0
_GLOBAL, _LOCAL = range(2)


@dataclass(frozen=True, kw_only=True)
class Gemma3Config(DecoderConfig):
    """`local`: per layer, whether it has a window, and so the local rope. `final_softcap`: of logits."""

    local: tuple[bool, ...]
    query_scale: float
    final_softcap: float | None
    attention_bias: bool


def read_config(raw: Mapping[str, Any], max_len: int | None) -> Gemma3Config:
    """Raises ConfigError for what is not served, by name."""
    if "vision_config" in raw or "text_config" in raw:
        raise ConfigError("this Gemma 3 reads images (vision_config): core serves text models, such as gemma-3-1b-it")
    only("gemma3", raw, "hidden_activation", "gelu_pytorch_tanh")
    only("gemma3", raw, "attn_logit_softcapping", None)
    only("gemma3", raw, "use_bidirectional_attention", False)
    pattern = raw.get("sliding_window_pattern") or _PATTERN
    windows = read_windows("gemma3", raw, raw.get("sliding_window", 4096), lambda i: (i + 1) % pattern != 0)
    shared = read_decoder(
        raw, max_len, windows=windows, ropes=_read_ropes(raw, max_len), head_size=_HEAD_SIZE, tied=True
    )
    return Gemma3Config(
        **shared,
        norm_add=1.0,
        local=tuple(window is not None for window in windows),
        query_scale=raw.get("query_pre_attn_scalar", _HEAD_SIZE) ** -0.5,
        final_softcap=raw.get("final_logit_softcapping"),
        attention_bias=raw.get("attention_bias", False),
    )


def _read_ropes(raw: Mapping[str, Any], max_len: int | None) -> tuple[RopeConfig, RopeConfig]:
    """The global and the local rope; both spellings of config.json."""
    by_kind = raw.get("rope_parameters") or {}
    scaled = {"rope_theta": raw.get("rope_theta", _GLOBAL_THETA), **(raw.get("rope_scaling") or {})}
    plain = {"rope_theta": raw.get("rope_local_base_freq", _LOCAL_THETA)}
    shape = {name: value for name, value in raw.items() if not name.startswith("rope_")}
    shape["head_dim"] = raw.get("head_dim") or _HEAD_SIZE
    parameters = by_kind.get("full_attention") or scaled, by_kind.get("sliding_attention") or plain
    full, sliding = (read_rope({**shape, "rope_parameters": p}, max_len) for p in parameters)
    return full, sliding


def build(config: Gemma3Config, b: Builder) -> Decoder:
    def layer(parts: Parts) -> DecoderLayer:
        attention = parts.attention(
            parts.normed_rotary(),
            qkv=parts.qkv(config.attention_bias),
            out=Chain(parts.out(config.attention_bias), parts.norm("post_attention_layernorm")),
            scale=config.query_scale,
        )
        mlp = Chain(parts.mlp("gelu_tanh"), parts.norm("post_feedforward_layernorm"))
        rope = _LOCAL if config.local[parts.index] else _GLOBAL
        return DecoderLayer(attention, parts.add_norm("pre_feedforward_layernorm"), mlp, rope)

    embed = Chain(embedding(config, b), Scale(b, config.hidden_size**0.5))
    finish = Softcap(b, config.final_softcap) if config.final_softcap else None
    return Decoder(config, b, layer, embed=embed, finish=finish)


def gguf_fix(name: str, tensor: np.ndarray, raw: Mapping[str, Any]) -> np.ndarray:
    """Conversion to GGUF adds the 1 to the weights of norms; take it away again."""
    return tensor - 1 if name.endswith("norm.weight") else tensor


def gguf_config(get: Callable[[str], Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """What GGUF files of this family leave out is the same in all of them, but for the 27B's scale of queries."""
    per_head = config["hidden_size"] // config["num_attention_heads"]
    return {
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window_pattern": _PATTERN,
        "rope_local_base_freq": _LOCAL_THETA,
        "query_pre_attn_scalar": per_head if config["num_hidden_layers"] == 62 else config["head_dim"],
        "final_logit_softcapping": get("final_logit_softcapping"),
        "attn_logit_softcapping": get("attn_logit_softcapping"),
    }


@hookimpl
def core_models() -> list[ModelSpec]:
    return [
        ModelSpec(
            architectures=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
            read_config=read_config,
            build=build,
            gguf_arch="gemma3",
            gguf_fix=gguf_fix,
            gguf_config=gguf_config,
        )
    ]
