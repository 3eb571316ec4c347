"""A small Llama in plain torch, to train with: its tensors have the names of a Hugging Face checkpoint.

Refuses nothing and serves nothing: the engine reads what it writes. B sequences, L tokens, E hidden size, H heads,
D head size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Shape:
    """Sizes, under the names of config.json."""

    vocab_size: int
    max_position_embeddings: int
    hidden_size: int = 64
    intermediate_size: int = 128
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0

    def config(self) -> dict[str, Any]:
        """The content of config.json."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **asdict(self),
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            "bos_token_id": None,
            "eos_token_id": None,
            "dtype": "bfloat16",
        }


def _linear(columns: int, rows: int) -> nn.Linear:
    return nn.Linear(columns, rows, bias=False)


def _turn(x_BHLD: torch.Tensor, angles_LF: torch.Tensor) -> torch.Tensor:
    """Rotate the two halves of each head against each other."""
    a, b = x_BHLD.chunk(2, -1)
    cos, sin = angles_LF.cos(), angles_LF.sin()
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self._size = s.head_dim
        queries, keys = s.num_attention_heads * s.head_dim, s.num_key_value_heads * s.head_dim
        self.q_proj, self.k_proj = _linear(s.hidden_size, queries), _linear(s.hidden_size, keys)
        self.v_proj, self.o_proj = _linear(s.hidden_size, keys), _linear(queries, s.hidden_size)

    def forward(self, x_BLE: torch.Tensor, angles_LF: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part(x_BLE).unflatten(-1, (-1, self._size)).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = _turn(q, angles_LF), _turn(k, angles_LF)
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: torch.Tensor = self.o_proj(o.transpose(1, 2).flatten(2))
        return out


class MLP(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.gate_proj = _linear(s.hidden_size, s.intermediate_size)
        self.up_proj = _linear(s.hidden_size, s.intermediate_size)
        self.down_proj = _linear(s.intermediate_size, s.hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(s), MLP(s)
        self.input_layernorm = nn.RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(s.hidden_size, s.rms_norm_eps)

    def forward(self, x_BLE: torch.Tensor, angles_LF: torch.Tensor) -> torch.Tensor:
        x_BLE = x_BLE + self.self_attn(self.input_layernorm(x_BLE), angles_LF)
        out: torch.Tensor = x_BLE + self.mlp(self.post_attention_layernorm(x_BLE))
        return out


class Body(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(s.vocab_size, s.hidden_size)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.num_hidden_layers))
        self.norm = nn.RMSNorm(s.hidden_size, s.rms_norm_eps)


class Llama(nn.Module):
    """ids [B, L] -> logits [B, L, V]."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.model, self.lm_head = Body(s), _linear(s.hidden_size, s.vocab_size)
        frequencies = s.rope_theta ** -(torch.arange(0, s.head_dim, 2) / s.head_dim)
        self._angles_LF = torch.outer(torch.arange(s.max_position_embeddings), frequencies)

    def forward(self, ids_BL: torch.Tensor) -> torch.Tensor:
        x_BLE = self.model.embed_tokens(ids_BL)
        for layer in self.model.layers:
            x_BLE = layer(x_BLE, self._angles_LF[: ids_BL.shape[1]])
        logits_BLV: torch.Tensor = self.lm_head(self.model.norm(x_BLE))
        return logits_BLV
