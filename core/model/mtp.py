"""Draft layers: a block of the model's own kind that foretells the token after the next one, k tokens ahead in layer k.

Owns how they are computed and what their weights are called; refuses models that are no `Decoder`. Drafting itself,
and when it pays, is not decided here.

    e = eh_proj[:, :E] enorm(embed(t[i + k]));  h = eh_proj[:, E:] hnorm(hidden[k - 1][i])
    hidden[k][i] = shared_head.norm(block(e + h));  logits of t[i + k + 1] = head(hidden[k][i])

hidden[0] is what the model multiplies by its head, and hidden[k] what layer k does; so both are normed. The projection
takes the embedding first, as released weights do (the paper writes the hidden state first). Products with its two
halves are added where the block norms their sum, so there is no concatenation, and between kernels are views only.
Rope turns position i by i, in every layer. Layer k's cache entry at i rests on t[i + k]: its group has lookahead k.
Layer k stands in checkpoints as layer number N + k - 1 of a model with N layers.

Source: DeepSeek-AI 2024 (arXiv 2412.19437), section 2.2.
Legend as in `core.model.layers`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from core.errors import ConfigError
from core.kv.groups import KVGroup, Place
from core.model.decoder import LAYERS, Decoder, Parts
from core.model.decoder_config import DecoderConfig
from core.model.layers import Builder, Head, Model, Planes, Weights

if TYPE_CHECKING:
    import torch

DRAFT_HEAD = "draft_head.weight"
"""Rows of the model's head for the reduced vocabulary, as a checkpoint tensor; `core.speculate.heads` makes it."""


def block_like(config: DecoderConfig) -> int:
    """The layer that draft blocks are like: the first of those that see the most, at any length that is served."""
    return config.widest[0]


def check_family(model: Model) -> Decoder:
    """Raises: ConfigError for a model that is no decoder."""
    if not isinstance(model, Decoder):
        raise ConfigError(
            f"draft layers are blocks of a decoder, and {type(model).__name__} is none: its family must be built of "
            "core.model.decoder.Decoder"
        )
    return model


def tensor_prefix(config: DecoderConfig, number: int) -> str:
    """What the checkpoint's names of draft layer `number` (from 1) begin with."""
    return f"{LAYERS}.{config.num_layers + number - 1}."


def with_draft_layers(config: DecoderConfig, num: int) -> tuple[tuple[KVGroup, ...], Place]:
    """The model's KV groups, one of them with so many draft layers more; and the place of the first of these."""
    place = config.places[block_like(config)]
    groups = list(config.kv_groups)
    group = groups[place.group]
    groups[place.group] = replace(group, num_layers=group.num_layers + num, lookahead=num)
    return tuple(groups), Place(place.group, group.num_layers)


class DraftLayer:
    """Draft layer `number`, from 1."""

    def __init__(self, decoder: Decoder, b: Builder, number: int) -> None:
        config = decoder.config
        parts = Parts(config, b, block_like(config), draft=number)
        size = config.hidden_size
        self.group = parts.group
        self._embed = decoder.embed
        self._enorm, self._hnorm = parts.norm("enorm"), parts.norm("hnorm")
        self._from_embedding = parts.linear("eh_proj.e", ["eh_proj"], size, size, None, columns=(0, size))
        self._from_hidden = parts.linear("eh_proj.h", ["eh_proj"], size, size, None, columns=(size, 2 * size))
        self._first_norm = parts.add_norm("input_layernorm")
        self._block = decoder.make_layer(parts)
        self._last_norm = parts.add_norm("shared_head.norm")
        self._rope = decoder.ropes[self._block.rope]

    def __call__(
        self,
        w: Weights,
        ids_T: torch.Tensor,
        hidden_TE: torch.Tensor,
        positions_T: torch.Tensor,
        slots_T: torch.Tensor,
        plan: Any,
        planes: Planes,
    ) -> tuple[torch.Tensor, Planes]:
        """Normed hidden states, and the cache after the step.

        ids_T       at position i: token i + `number` of its sequence
        hidden_TE   normed, of the model or the draft layer before
        """
        e_TE = self._from_embedding(w, self._enorm(w, self._embed(w, ids_T)))
        h_TE = self._from_hidden(w, self._hnorm(w, hidden_TE))
        x_TE, sum_TE = self._first_norm(w, e_TE, h_TE)
        x_TE, planes = self._block.attention(w, x_TE, self._rope(w, positions_T), slots_T, plan, planes)
        x_TE, sum_TE = self._block.mlp_norm(w, x_TE, sum_TE)
        hidden_TE, _ = self._last_norm(w, self._block.mlp(w, x_TE), sum_TE)
        return hidden_TE, planes


class DraftHeads:
    """The draft layers of a model, and the head that they share with it.

    draft_vocab   tokens that drafts are chosen among, with head rows of their own; None: all, by the model's head
    """

    def __init__(self, model: Model, b: Builder, num_layers: int, draft_vocab: int | None = None) -> None:
        """Declares parameters and binds kernels. Raises: ConfigError for a model that is no decoder."""
        decoder = check_family(model)
        self.layers = [DraftLayer(decoder, b, number) for number in range(1, num_layers + 1)]
        self._finish = decoder.finish
        self._head = decoder.head
        if draft_vocab is not None:
            self._head = Head(b, "draft_head", DRAFT_HEAD, draft_vocab, decoder.config.hidden_size)

    @property
    def groups(self) -> tuple[KVGroup, ...]:
        """What each layer caches."""
        return tuple(layer.group for layer in self.layers)

    def layer(self, number: int) -> DraftLayer:
        """The layer that foretells `number` tokens past the next one: past the last layer, that one again."""
        return self.layers[min(number, len(self.layers)) - 1]

    def logits(self, w: Weights, hidden_LE: torch.Tensor) -> torch.Tensor:
        """[L, V] over the draft vocabulary, of hidden states as layers return them."""
        logits_LV = self._head(w, hidden_LE)
        return self._finish(w, logits_LV) if self._finish else logits_LV
