"""Draft layers in float64, written from section 2.2 of arXiv 2412.19437: one token and one head at a time.

At position i (from 0), layer k takes the hidden state of layer k - 1 there and the embedding of token i + k; its
projection M has the embedding's columns first, as released weights have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Twin:
    """`tensors`: of the model and its draft layers, by checkpoint name. `raw`: config.json."""

    tensors: Tensors
    raw: Mapping[str, Any]
    gemma: bool = False

    def run(self, ids: list[int], hidden: torch.Tensor, num_layers: int) -> list[torch.Tensor]:
        """Hidden states of each layer: [n - k, E] for the k-th, from the model's [n, E]."""
        found = []
        for k in range(1, num_layers + 1):
            prefix = f"model.layers.{self.raw['num_hidden_layers'] + k - 1}."
            hidden = self.layer(prefix, ids[k:], hidden[: len(ids) - k])
            found.append(hidden)
        return found

    def layer(self, prefix: str, ids: list[int], hidden: torch.Tensor) -> torch.Tensor:
        rows = []
        for token, before in zip(ids, hidden.double(), strict=True):
            embedded = self.embed(token)
            pair = torch.cat((self.norm(prefix + "enorm", embedded), self.norm(prefix + "hnorm", before)))
            rows.append(self.weight(prefix + "eh_proj.weight") @ pair)
        return torch.stack([self.norm(prefix + "shared_head.norm", row) for row in self.block(prefix, rows)])

    def logits(self, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Of the tokens `ids`."""
        name = "model.embed_tokens.weight" if self.raw.get("tie_word_embeddings") else "lm_head.weight"
        product = hidden @ self.weight(name)[ids.long()].T
        cap = self.raw.get("final_logit_softcapping")
        return torch.tanh(product / cap) * cap if cap else product

    def embed(self, token: int) -> torch.Tensor:
        row = self.weight("model.embed_tokens.weight")[token]
        return row * torch.tensor(len(row) ** 0.5) if self.gemma else row

    def block(self, prefix: str, rows: list[torch.Tensor]) -> list[torch.Tensor]:
        normed = [self.norm(prefix + "input_layernorm", row) for row in rows]
        given = self.attention(prefix + "self_attn.", normed)
        if self.gemma:
            given = [self.norm(prefix + "post_attention_layernorm", row) for row in given]
        rows = [row + more for row, more in zip(rows, given, strict=True)]
        before = "pre_feedforward_layernorm" if self.gemma else "post_attention_layernorm"
        given = [self.mlp(prefix + "mlp.", self.norm(prefix + before, row)) for row in rows]
        if self.gemma:
            given = [self.norm(prefix + "post_feedforward_layernorm", row) for row in given]
        return [row + more for row, more in zip(rows, given, strict=True)]

    def attention(self, prefix: str, rows: list[torch.Tensor]) -> list[torch.Tensor]:
        heads, kv_heads, size = (self.raw[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        q = [self.heads(prefix + "q", row, heads, i) for i, row in enumerate(rows)]
        k = [self.heads(prefix + "k", row, kv_heads, i) for i, row in enumerate(rows)]
        v = [self.linear(prefix + "v_proj", row).view(kv_heads, size) for row in rows]
        scale = (self.raw["query_pre_attn_scalar"] if self.gemma else size) ** -0.5
        out = []
        for i in range(len(rows)):
            parts = []
            for h in range(heads):
                g = h * kv_heads // heads
                scores = torch.stack([q[i][h] @ k[j][g] * scale for j in range(i + 1)])
                chances = scores.softmax(0)
                parts.append(sum(chances[j] * v[j][g] for j in range(i + 1)))
            out.append(self.linear(prefix + "o_proj", torch.cat(parts)))
        return out

    def heads(self, name: str, row: torch.Tensor, count: int, position: int) -> torch.Tensor:
        """Queries or keys, normed where the model has norms for them, and turned by their position."""
        turned = []
        for plain in self.linear(name + "_proj", row).view(count, -1):
            head = self.norm(name + "_norm", plain) if name + "_norm.weight" in self.tensors else plain
            half = len(head) // 2
            angles = [position * self.theta ** (-i / half) for i in range(half)]
            cos, sin = (torch.tensor([f(a) for a in angles], dtype=torch.float64) for f in (math.cos, math.sin))
            a, b = head[:half], head[half:]
            turned.append(torch.cat((a * cos - b * sin, b * cos + a * sin)))
        return torch.stack(turned)

    @property
    def theta(self) -> float:
        """Of layers that see everything."""
        ropes = self.raw["rope_parameters"]
        return float(ropes.get("full_attention", ropes)["rope_theta"])

    def mlp(self, prefix: str, row: torch.Tensor) -> torch.Tensor:
        gate, up = self.linear(prefix + "gate_proj", row), self.linear(prefix + "up_proj", row)
        if self.gemma:
            act = 0.5 * gate * (1 + torch.tanh((2 / math.pi) ** 0.5 * (gate + 0.044715 * gate**3)))
        else:
            act = gate / (1 + torch.exp(-gate))
        return self.linear(prefix + "down_proj", act * up)

    def norm(self, name: str, row: torch.Tensor) -> torch.Tensor:
        weight = self.weight(name + ".weight") + (1 if self.gemma else 0)
        return row / torch.sqrt((row * row).mean() + self.raw["rms_norm_eps"]) * weight

    def linear(self, name: str, row: torch.Tensor) -> torch.Tensor:
        product = self.weight(name + ".weight") @ row
        return product + self.weight(name + ".bias") if name + ".bias" in self.tensors else product

    def weight(self, name: str) -> torch.Tensor:
        return self.tensors[name].double()
