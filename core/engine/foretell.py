"""Draft layers at work: after each draw of a step, the ids that may follow it.

Owns which id each draft layer is given for each token, and which ids it foretells; where drafts are checked and whether
they pay is the scheduler's affair (`core.speculate.drafting`).

Every token of a step passes through every draft layer, so that their cache has an entry for each. Layer k is given the
token k places ahead: of a prompt it is known, after a draw it is what was drawn, and further on what the layer before
foretold. A cache entry that rests on a wrong draft stays as it is, and so do those at the end of a page that another
sequence shares and continues otherwise, and of a chunk so near the end of a prompt that the token is not drawn yet.
That may spoil a draft, and never an id, because drafts are checked.
"""

from __future__ import annotations

from typing import Any

import torch

from core.engine.pack import StepInput
from core.kernels.bind import KernelSet
from core.kernels.row import Kernel
from core.kv.groups import KVGroup, Place
from core.model.layers import Planes, Weights
from core.model.mtp import DraftHeads
from core.plan import Plan
from core.plugin.facts import Need
from core.speculate.heads import DRAFT_IDS

Carry = tuple[torch.Tensor, torch.Tensor]
"""Of all tokens of a step: ids_T, and hidden_TE as the model's head is given it."""


def attention_plan(kernels: KernelSet, group: KVGroup, plan: Plan) -> Kernel:
    """The bound `attn_plan` of a KV group."""
    need = Need(dtype=plan.dtype, head_size=group.head_size, page_tokens=plan.page_tokens)
    return kernels.bind("attn_plan", need, page_tokens=plan.page_tokens, window=group.retain)


class Foretell:
    """So many drafts by the layers of `heads`: past the last layer, that one again, with a cache of its own each time.

    place   of the cache for the first draft
    """

    def __init__(
        self,
        heads: DraftHeads,
        num_drafts: int,
        place: Place,
        kernels: KernelSet,
        groups: tuple[KVGroup, ...],
        plan: Plan,
    ) -> None:
        need = Need(dtype=plan.dtype)
        self._heads, self.num_drafts, self._place = heads, num_drafts, place
        self._take, self._put = kernels.bind("take_ids", need), kernels.bind("put_ids", need)
        self._rows, self._sample = kernels.bind("gather_rows", need), kernels.bind("sample", need)
        self._plan = attention_plan(kernels, groups[place.group], plan)

    def __call__(
        self,
        w: Weights,
        x: StepInput,
        carry: Carry,
        last_ids: torch.Tensor,
        scratch: torch.Tensor,
        kv: list[list[Planes]],
    ) -> tuple[tuple[torch.Tensor, ...], torch.Tensor, list[list[Planes]]]:
        """Drafts [L] after each row of logits, one place after the other, the scratch table, and the KV planes.

        w          has the draft vocabulary as `DRAFT_IDS`
        last_ids   with what this step drew
        scratch    a table of that size, written over
        """
        assert x.ahead is not None
        g, first = self._place
        plan = self._plan(x.query_starts, x.kv_lens, x.block_tables[g], num_tokens=x.key.tokens, host=x.host)
        planes = [list(group) for group in kv]
        (ids_T, hidden_TE), table, foretold = carry, last_ids, []
        for number, (known_T, at) in enumerate(zip(x.ahead.known, range(first, len(planes[g])), strict=True), 1):
            layer = self._heads.layer(number)
            ids_T = self._take(self._take(known_T, x.ahead.shift, ids_T), x.ahead.rows, table)
            hidden_TE, planes[g][at] = layer(w, ids_T, hidden_TE, x.positions, x.slots[g], plan, planes[g][at])
            foretold.append(self._likeliest(w, x, hidden_TE))
            table = scratch = self._put(scratch, x.output_rows, foretold[-1])
        return tuple(foretold), scratch, planes

    def _likeliest(self, w: Weights, x: StepInput, hidden_TE: torch.Tensor) -> Any:
        logits_LV = self._heads.logits(w, self._rows(hidden_TE, x.logit_rows))
        limits = x.temperature, x.top_k, x.top_p, x.seed, x.counter
        places_L = self._sample(logits_LV, *limits, greedy=True, top_k_max=1)
        ids = w[DRAFT_IDS]
        return self._take(ids[:1].expand(places_L.shape), places_L, ids)  # place 0 means no place
