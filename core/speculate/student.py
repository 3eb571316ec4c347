"""Draft heads in training: parameters under their checkpoint names, and the loss of a batch.

The layers are those that serve (`core.model.mtp`), on the kernels' references, which autograd goes through: what is
trained is what is run. Parameters are float32; arithmetic is in the dtype that was asked for.

Loss. Layer k at position i is given the text's own tokens and learns the model's distribution p of token i + k + 1.
Over the draft vocabulary D, with mass m = p(D), it is m KL(p / m || q): the target is p on D, made to sum to 1, and a
position counts by what D has of p. Mass outside of D is not laid on other tokens.

Legend: B rows of a batch, L tokens in a row, N = B L, K draft layers, E hidden size, V draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch.nn.functional import cross_entropy

from core.kernels.bind import KernelSet
from core.kernels.dtypes import TORCH_DTYPES
from core.model.decoder import EMBED, LAYERS, head_source
from core.model.decoder_config import DecoderConfig
from core.model.layers import Builder, Param, Planes
from core.model.load import Loader
from core.model.mtp import DRAFT_HEAD, DraftHeads, DraftLayer, check_family, tensor_prefix
from core.model.source import ModelSource
from core.model.spec import ModelSpec, Shard
from core.plugin.device import Device
from core.plugin.facts import Need
from core.speculate.heads import WithHeads


class Batch(NamedTuple):
    """Rows of text with what the model made of them.

    ids      [B, L] int64, 0 past the end; lens [B] int64: tokens of each row; prompts [B]: those that are its prompt
    hidden   [B, L, E]: the model's normed hidden states
    total    [B, L] float32: log of the sum of exponentials of the model's logits
    best     [B, L] int64: the model's likeliest next token
    """

    ids: torch.Tensor
    lens: torch.Tensor
    prompts: torch.Tensor
    hidden: torch.Tensor
    total: torch.Tensor
    best: torch.Tensor


class Losses(NamedTuple):
    """Per layer [K]: the sum of losses of positions, and of their weights m."""

    loss: torch.Tensor
    weight: torch.Tensor


class Agreement(NamedTuple):
    """num_agree [K]: positions where layers 1 to k agree with the model; num_known: where D has its likeliest token."""

    num_positions: int
    num_agree: list[int]
    num_known: int

    @property
    def per_position(self) -> list[float]:
        """Of each layer: agreement among positions where all layers before it agree."""
        return [n / max(1, before) for before, n in pairwise((self.num_positions, *self.num_agree))]


class Student:
    """K draft heads of one model. Lives on `where`, in rows of `row_tokens` tokens.

    Raises: ConfigError for a model that cannot have draft heads.
    """

    def __init__(
        self,
        base: ModelSource,
        spec: ModelSpec,
        device: Device,
        where: torch.device,
        *,
        dtype: str,
        num_layers: int,
        draft_ids: torch.Tensor,
        row_tokens: int,
        seed: int,
    ) -> None:
        self._where, self._row, self.dtype = where, row_tokens, dtype
        self._kernels = KernelSet((), {}, Need(dtype=dtype, page_tokens=row_tokens))
        builder = Builder(self._kernels, Shard(), dtype, row_tokens, row_tokens)
        model = check_family(spec.build(spec.read_config(base.config, row_tokens), builder))
        others = set(builder.params)
        self._heads = DraftHeads(model, builder, num_layers, len(draft_ids))
        self.config = model.config
        taught = {DRAFT_HEAD.removesuffix(".weight")}
        self._own = [p for name, p in builder.params.items() if name not in others | taught]
        frozen = {name: p for name, p in builder.params.items() if name in taught | {EMBED} or p.make}
        source = WithHeads(base, {}, draft_ids, head_source(self.config))
        loader = Loader(source, device, where, self._kernels, dtype=dtype, shard=Shard())
        self._frozen = loader.load(frozen)
        self._draft_ids = draft_ids.long().to(where)
        self.tensors = _initial(base, self.config, self._own, num_layers, where, seed)

    def losses(self, batch: Batch) -> Losses:
        """Of a batch, for each layer; see the top of this file."""
        w, sums, weights = self._weights(), [], []
        with torch.no_grad():
            taught = self._heads.logits(w, batch.hidden.flatten(0, 1)).float()
            mass = (taught.logsumexp(-1) - batch.total.flatten()).exp().clamp(max=1)
            taught = taught.softmax(-1)
            least = torch.special.entr(taught).sum(-1)  # cross-entropy of what is learned perfectly
        for number, hidden in enumerate(self._run(w, batch), 1):
            rows, targets = self._positions(batch, number)
            logits = self._heads.logits(w, hidden[rows]).float()
            each = cross_entropy(logits, taught[targets], reduction="none") - least[targets]
            sums.append((each * mass[targets]).sum())
            weights.append(mass[targets].sum())
        return Losses(torch.stack(sums), torch.stack(weights))

    @torch.no_grad()
    def agreement(self, batch: Batch) -> Agreement:
        """Of greedy drafts with the model, at the positions that decoding would draft from."""
        w, best = self._weights(), batch.best.flatten()
        places = torch.arange(self._row, device=self._where)
        last = batch.lens[:, None] - len(self._heads.layers)
        rows = ((places >= batch.prompts[:, None] - 1) & (places < last)).flatten().nonzero().flatten()
        good = torch.ones(len(rows), dtype=torch.bool, device=self._where)
        counts = []
        for number, hidden in enumerate(self._run(w, batch), 1):
            drafts = self._draft_ids[self._heads.logits(w, hidden[rows]).argmax(-1)]
            good = good & (drafts == best[rows + number])
            counts.append(int(good.sum()))
        known = torch.isin(best[rows + 1], self._draft_ids)
        return Agreement(len(rows), counts, int(known.sum()))

    def _positions(self, batch: Batch, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of [N, ...] where layer `number` learns, and those of the distributions that it learns there."""
        places = torch.arange(self._row, device=self._where)
        rows = (places < batch.lens[:, None] - number).flatten().nonzero().flatten()
        return rows, rows + number

    def _run(self, w: Mapping[str, Any], batch: Batch) -> list[torch.Tensor]:
        """Hidden states [N, E] of each layer. What it makes of the end of a row, where tokens lack, nobody reads."""
        num_rows, length = batch.ids.shape
        positions = torch.arange(length, dtype=torch.int32, device=self._where).repeat(num_rows)
        pages = torch.arange(1, num_rows + 1, dtype=torch.int32, device=self._where)
        slots = positions + pages.repeat_interleave(length) * length
        hidden, found = batch.hidden.flatten(0, 1), []
        for number, layer in enumerate(self._heads.layers, 1):
            ahead = torch.zeros_like(batch.ids)
            ahead[:, :-number] = batch.ids[:, number:]
            plan = self._plan(layer, pages, length)
            hidden, _ = layer(w, ahead.flatten(), hidden, positions, slots, plan, self._planes(layer, num_rows))
            found.append(hidden)
        return found

    def _plan(self, layer: DraftLayer, pages: torch.Tensor, length: int) -> Any:
        """Every row is one sequence, in one page."""
        starts = torch.arange(len(pages) + 1, dtype=torch.int32, device=self._where) * length
        lens = torch.full_like(pages, length)
        bound = self._kernels.bind("attn_plan", page_tokens=self._row, window=layer.group.retain)
        return bound(starts, lens, pages[:, None], num_tokens=len(pages) * length)

    def _planes(self, layer: DraftLayer, num_rows: int) -> Planes:
        group = layer.group
        layout = self._kernels.bind("kv_layout")(
            num_kv_heads=group.num_kv_heads, head_size=group.head_size, page_tokens=self._row, dtype=self.dtype
        )
        shapes = zip(layout.planes, layout.shapes(num_rows + 1), strict=True)
        return tuple(torch.zeros(s, dtype=TORCH_DTYPES[p.dtype], device=self._where) for p, s in shapes)

    def _weights(self) -> dict[str, Any]:
        """As the layers take them: joined, cut and rounded as `Loader` does, and autograd goes through it."""
        made = {}
        for param in self._own:
            parts = [self._part(source.name, source.columns) for source in param.sources]
            joined = parts[0] if len(parts) == 1 else torch.cat(parts)
            made[param.name] = (joined + param.add if param.add else joined).to(TORCH_DTYPES[self.dtype])
        return {**self._frozen, **made}

    def _part(self, name: str, columns: tuple[int, int] | None) -> torch.Tensor:
        return self.tensors[name][:, slice(*columns)] if columns else self.tensors[name]


def _initial(
    base: ModelSource, config: DecoderConfig, params: list[Param], num_layers: int, where: torch.device, seed: int
) -> dict[str, torch.Tensor]:
    """Where training begins: the block is a copy of the model's last layer of its kind, and the last norm of the
    model's. The projection passes the hidden state, and mixes the embedding at random: where the model's head is its
    embedding, a token that is passed as it is would be foretold again, with near certainty.
    """
    size = config.hidden_size
    prefixes = {tensor_prefix(config, k): f"{LAYERS}.{config.widest[-1]}." for k in range(1, num_layers + 1)}
    random = torch.Generator().manual_seed(seed)
    one = torch.full((size,), 1 - config.norm_add)
    tensors = {}
    for name in sorted({source.name for param in params for source in param.sources}):
        prefix = next(p for p in prefixes if name.startswith(p))
        part = name.removeprefix(prefix)
        if part in ("enorm.weight", "hnorm.weight"):
            start = one
        elif part == "eh_proj.weight":
            start = torch.cat((torch.randn(size, size, generator=random) * size**-0.5, torch.eye(size)), 1)
        else:
            start = base.read("model.norm.weight" if part == "shared_head.norm.weight" else prefixes[prefix] + part)
        tensors[name] = start.to(where, torch.float32, copy=True).requires_grad_()
    return tensors
