"""What runs in the passes of `core.engine.foretell`: the draft layers of a model, or a draft model.

Both are given token i + k at position i in pass k, keep what they make of it in a cache of that pass's own, and give
logits of token i + k + 1.

Draft layers go on from the hidden states of the model, or of the layer before. A draft model goes by tokens alone, so a
prompt passes through it once for each draft. Position 0 has token 0 in each pass: models lean on the first token (Xiao
et al. 2023, arXiv 2309.17453), and most were never without the one that begins texts. So pass k is the draft model on
the text without its tokens 1 to k, which it never sees; of a prompt of one token, on the text without its first k. That
costs it some guesses near the beginning, and never an id.

Legend as in `core.model.layers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch

from core.engine.step_input import StepInput
from core.kv.groups import KVGroup, Place
from core.model.layers import Builder, LogitRows, Model, Planes, Weights
from core.model.mtp import DraftHeads
from core.speculate.heads import DRAFT_IDS

Carry = tuple[torch.Tensor, torch.Tensor | None]
"""Of all tokens of a step: ids_T, and for passes that read them hidden_TE, as the model's head is given it."""
Passed = tuple[torch.Tensor, torch.Tensor | None, list[list[Planes]]]


class Passes(Protocol):
    """What foretells.

    groups         numbers of the KV groups that it caches in
    reads_hidden   passes are given hidden states
    keeps_first    they are given the first token of a text as it is, at position 0
    ids            the weight that says which id each logit is of; None: they are of all ids in order
    """

    @property
    def groups(self) -> Sequence[int]: ...
    @property
    def reads_hidden(self) -> bool: ...
    @property
    def keeps_first(self) -> bool: ...
    @property
    def ids(self) -> str | None: ...

    def __call__(
        self, w: Weights, number: int, carry: Carry, x: StepInput, plans: Sequence[Any], kv: list[list[Planes]]
    ) -> Passed:
        """Logits [L, V] of the step's logit rows, hidden states for the next pass, and all KV planes.

        number   of the pass, from 1
        carry    with the ids that this pass is given
        plans    the attention plan of each of `groups`
        """


class LayerPasses:
    """The draft layers `heads`: past the last layer, that one again. `place` is that of the first one's cache."""

    reads_hidden, keeps_first, ids = True, False, DRAFT_IDS

    def __init__(self, heads: DraftHeads, place: Place, b: Builder) -> None:
        self._heads, self._place = heads, place
        self._rows = LogitRows(b)
        self.groups = (place.group,)

    def __call__(
        self, w: Weights, number: int, carry: Carry, x: StepInput, plans: Sequence[Any], kv: list[list[Planes]]
    ) -> Passed:
        (ids_T, hidden_TE), (g, first), [plan] = carry, self._place, plans
        assert hidden_TE is not None
        planes, at = [list(group) for group in kv], first + number - 1
        layer = self._heads.layer(number)
        hidden_TE, planes[g][at] = layer(w, ids_T, hidden_TE, x.positions, x.slots[g], plan, planes[g][at])
        return self._heads.logits(w, self._rows(hidden_TE, x.logit_rows)), hidden_TE, planes


class _View(NamedTuple):
    """A `core.model.layers.StepView` of the draft model's own groups."""

    positions: torch.Tensor
    logit_rows: torch.Tensor
    slots: list[torch.Tensor]


class ModelPasses:
    """The draft model `model`.

    groups   what it caches in one pass; in the engine, where group `first` is the first of them, each has the layers
             of one pass after those of the pass before
    """

    reads_hidden, keeps_first, ids = False, True, None

    def __init__(self, model: Model, groups: Sequence[KVGroup], first: int) -> None:
        self._model = model
        self._num_layers = [group.num_layers for group in groups]
        self.groups = tuple(range(first, first + len(groups)))

    def __call__(
        self, w: Weights, number: int, carry: Carry, x: StepInput, plans: Sequence[Any], kv: list[list[Planes]]
    ) -> Passed:
        places = [(g, slice((number - 1) * n, number * n)) for g, n in zip(self.groups, self._num_layers, strict=True)]
        view = _View(x.positions, x.logit_rows, [x.slots[g] for g in self.groups])
        logits_LV, _, own = self._model(w, carry[0], view, plans, [kv[g][part] for g, part in places])
        planes = [list(group) for group in kv]
        for (g, part), layers in zip(places, own, strict=True):
            planes[g][part] = layers
        return logits_LV, None, planes
