"""The decoder that most families are: layers of attention and MLP that add to a sum, between an embedding and a head.

Owns the order of things and the names that most checkpoints give them. What differs between families is composed: a
family makes each layer of `Parts`, replaces those that it does otherwise, and hands them to a `Decoder`.

    sum = embed(ids)
    for each layer: sum += attention(norm(sum)); sum += mlp(norm(sum))
    logits = head(norm(sum))

Draft layers, which foretell tokens after the next one, are blocks of the same kind (`core.model.mtp`).

Legend as in `core.model.layers`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from core.model.attention import Attention, NormedRotary, RopeTable, Rotary, Turn
from core.model.decoder_config import DecoderConfig
from core.model.layers import (
    AddRMSNorm,
    Builder,
    Embedding,
    GatedMLP,
    Head,
    Layer,
    Linear,
    LogitRows,
    Planes,
    RMSNorm,
    StepView,
    Weights,
)
from core.model.rope import cos_sin_table

if TYPE_CHECKING:
    import torch

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
EMBED, HEAD, LAYERS = "embed", "head", "model.layers"


@dataclass(frozen=True)
class DecoderLayer:
    """What one layer adds to the sum.

    mlp_norm   adds what attention gave to the sum, and norms the sum for the MLP
    rope       which table of cosines and sines attention is given
    """

    attention: Attention
    mlp_norm: AddRMSNorm
    mlp: Layer
    rope: int = 0


class Parts:
    """Makes the parts of layer `index`, under the names that most checkpoints use.

    draft   k: the parts are those of draft layer k, which is as layer `index` is, with names of a layer past the
            model's own and a KV group of its own
    """

    def __init__(self, config: DecoderConfig, b: Builder, index: int, draft: int = 0) -> None:
        self._config, self._b = config, b
        self.index = index
        number = config.num_layers + draft - 1 if draft else index
        self._name, self._source = f"layers.{number}", f"{LAYERS}.{number}"
        group = config.kv_groups[config.places[index].group]
        self.group = replace(group, num_layers=1, lookahead=draft) if draft else group

    @property
    def qkv_sizes(self) -> tuple[int, int, int]:
        """Rows of the projections to queries, keys and values."""
        keys = self.group.num_kv_heads * self.group.head_size
        return self._config.num_heads * self.group.head_size, keys, keys

    def linear(
        self, name: str, sources: Sequence[str], n: int, k: int, split: str | None, *, bias: bool = False, **more: Any
    ) -> Linear:
        full = [f"{self._source}.{source}" for source in sources]
        return Linear(self._b, f"{self._name}.{name}", full, n, k, split=split, bias=bias, **more)

    def qkv(self, bias: bool = False) -> Linear:
        sources = [f"self_attn.{part}_proj" for part in "qkv"]
        return self.linear("qkv", sources, sum(self.qkv_sizes), self._config.hidden_size, "rows", bias=bias)

    def out(self, bias: bool = False) -> Linear:
        sizes = self._config.hidden_size, self.qkv_sizes[0]
        return self.linear("out", ["self_attn.o_proj"], *sizes, "columns", bias=bias)

    def gate_up(self, bias: bool = False) -> Linear:
        sizes = 2 * self._config.inner_size, self._config.hidden_size
        return self.linear("gate_up", ["mlp.gate_proj", "mlp.up_proj"], *sizes, "rows", bias=bias)

    def down(self, bias: bool = False) -> Linear:
        sizes = self._config.hidden_size, self._config.inner_size
        return self.linear("down", ["mlp.down_proj"], *sizes, "columns", bias=bias)

    def norm(self, source: str, size: int | None = None) -> RMSNorm:
        return RMSNorm(self._b, *self._norm(source, size))

    def add_norm(self, source: str) -> AddRMSNorm:
        return AddRMSNorm(self._b, *self._norm(source))

    def _norm(self, source: str, size: int | None = None) -> tuple[str, str, int, float, float]:
        c = self._config
        names = f"{self._name}.{source}", f"{self._source}.{source}.weight"
        return *names, size or c.hidden_size, c.norm_eps, c.norm_add

    def rotary(self) -> Rotary:
        return Rotary(self._b, self._config.ropes[0].dim)

    def normed_rotary(self) -> NormedRotary:
        """Queries and keys are normed, head by head, before they are turned."""
        norms = (self.norm(f"self_attn.{part}_norm", self.group.head_size) for part in "qk")
        return NormedRotary(self._b, self._config.ropes[0].dim, *norms)

    def attention(
        self, turn: Turn, *, qkv: Layer | None = None, out: Layer | None = None, scale: float | None = None
    ) -> Attention:
        """Scores are scaled by 1 / sqrt(D) unless `scale` is given."""
        return Attention(
            self._b,
            self.group,
            self._config.num_heads,
            qkv=qkv or self.qkv(),
            turn=turn,
            out=out or self.out(),
            scale=scale or self.group.head_size**-0.5,
        )

    def mlp(self, act: str = "silu", *, gate_up: Layer | None = None, down: Layer | None = None) -> GatedMLP:
        return GatedMLP(self._b, gate_up or self.gate_up(), down or self.down(), act)


def embedding(config: DecoderConfig, b: Builder) -> Embedding:
    return Embedding(b, EMBED, _EMBEDDING, config.vocab_size, config.hidden_size)


def head_source(config: DecoderConfig) -> str:
    """The checkpoint's name of the head's weight."""
    return _EMBEDDING if config.tied else _HEAD


class Decoder:
    """See `core.model.layers.Model`.

    layer    makes a layer of its parts
    embed    instead of the usual one
    finish   what becomes of the head's product before it is logits
    """

    def __init__(
        self,
        config: DecoderConfig,
        b: Builder,
        layer: Callable[[Parts], DecoderLayer],
        *,
        embed: Layer | None = None,
        finish: Layer | None = None,
    ) -> None:
        self.config, self.make_layer, self.finish = config, layer, finish
        self._places = config.places
        self.embed = embed or embedding(config, b)
        self.ropes = [
            RopeTable(b, f"rope{i}", partial(cos_sin_table, rope, b.max_len), rope.dim)
            for i, rope in enumerate(config.ropes)
        ]
        # The first layer's norm has nothing to add.
        self._first_norm = Parts(config, b, 0).norm("input_layernorm")
        indexes = range(config.num_layers)
        self._norms = [Parts(config, b, i).add_norm("input_layernorm") for i in indexes[1:]]
        self._layers = [layer(Parts(config, b, i)) for i in indexes]
        self._rows = LogitRows(b)
        self._norm = AddRMSNorm(b, "norm", "model.norm.weight", config.hidden_size, config.norm_eps, config.norm_add)
        self.head = Head(b, HEAD, head_source(config), config.vocab_size, config.hidden_size)

    def __call__(
        self, w: Weights, ids_T: torch.Tensor, step: StepView, plans: Sequence[Any], kv: list[list[Planes]]
    ) -> tuple[torch.Tensor, torch.Tensor, list[list[Planes]]]:
        x_TE, sum_TE, planes = self._states(w, ids_T, step, plans, kv)
        x_LE, sum_LE = self._rows(x_TE, step.logit_rows), self._rows(sum_TE, step.logit_rows)
        hidden_LE, _ = self._norm(w, x_LE, sum_LE)
        return self._logits(w, hidden_LE), hidden_LE, planes

    def all_states(
        self, w: Weights, ids_T: torch.Tensor, step: StepView, plans: Sequence[Any], kv: list[list[Planes]]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[list[Planes]]]:
        """As a call; before the KV planes, also the normed hidden states of all tokens."""
        x_TE, sum_TE, planes = self._states(w, ids_T, step, plans, kv)
        hidden_TE, _ = self._norm(w, x_TE, sum_TE)
        hidden_LE = self._rows(hidden_TE, step.logit_rows)
        return self._logits(w, hidden_LE), hidden_LE, hidden_TE, planes

    def _states(
        self, w: Weights, ids_T: torch.Tensor, step: StepView, plans: Sequence[Any], kv: list[list[Planes]]
    ) -> tuple[torch.Tensor, torch.Tensor, list[list[Planes]]]:
        """What the last layer gives, and the sum it is to be added to."""
        sum_TE = self.embed(w, ids_T)
        cos_sin_TF = [rope(w, step.positions) for rope in self.ropes]
        planes = [list(group) for group in kv]
        x_TE = self._first_norm(w, sum_TE)
        for i, (layer, (g, at)) in enumerate(zip(self._layers, self._places, strict=True)):
            if i:
                x_TE, sum_TE = self._norms[i - 1](w, x_TE, sum_TE)
            x_TE, planes[g][at] = layer.attention(
                w, x_TE, cos_sin_TF[layer.rope], step.slots[g], plans[g], planes[g][at]
            )
            x_TE, sum_TE = layer.mlp_norm(w, x_TE, sum_TE)
            x_TE = layer.mlp(w, x_TE)
        return x_TE, sum_TE, planes

    def _logits(self, w: Weights, hidden_LE: torch.Tensor) -> torch.Tensor:
        logits_LV = self.head(w, hidden_LE)
        return self.finish(w, logits_LV) if self.finish else logits_LV
