"""Draft layers, or a draft model, at work: after each draw of a step, the ids that may follow it.

Owns which id each pass is given for each token, and which ids it foretells. What a pass computes is in
`core.engine.passes`; where drafts are checked and whether they pay is the scheduler's affair
(`core.speculate.drafting`).

Every token of a step goes through every pass, so that the cache of each has an entry for it. Pass k is given the token
k places ahead: of a prompt it is known, after a draw it is what was drawn, and further on what the pass before
foretold. (Some keep the first token of a text in its place.) A cache entry that rests on a wrong draft stays as it is,
and so do those of a chunk so near the end of a prompt that the token is not drawn yet. That may spoil a draft, and
never an id, because drafts are checked. A page whose last entries rest on other tokens than those that follow here is
none of a sequence's prefix (`core.kv.prefix.ahead_keys`): it is computed again.
"""

from __future__ import annotations

from typing import Any

import torch

from core.engine.passes import Carry, Passes
from core.engine.step_input import StepInput
from core.kernels.bind import KernelSet
from core.kernels.row import Kernel
from core.kv.groups import KVGroup
from core.model.layers import Planes, Weights
from core.plan import Plan
from core.plugin.facts import Need


def attention_plan(kernels: KernelSet, group: KVGroup, plan: Plan) -> Kernel:
    """The bound `attn_plan` of a KV group."""
    need = Need(dtype=plan.dtype, head_size=group.head_size, page_tokens=plan.page_tokens)
    return kernels.bind("attn_plan", need, page_tokens=plan.page_tokens, window=group.retain)


class Foretell:
    """So many drafts, each by one of `passes`. `groups` are all KV groups of the engine."""

    def __init__(
        self, passes: Passes, num_drafts: int, kernels: KernelSet, groups: tuple[KVGroup, ...], plan: Plan
    ) -> None:
        need = Need(dtype=plan.dtype)
        self._passes, self.num_drafts = passes, num_drafts
        self.reads_hidden, self.keeps_first = passes.reads_hidden, passes.keeps_first
        self._take, self._put = kernels.bind("take_ids", need), kernels.bind("put_ids", need)
        self._sample = kernels.bind("sample", need)
        self._plans = [attention_plan(kernels, groups[g], plan) for g in passes.groups]

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

        last_ids   with what this step drew
        scratch    a table of that size, written over
        """
        assert x.ahead is not None
        plans = [
            plan(x.query_starts, x.kv_lens, x.block_tables[g], num_tokens=x.key.tokens, host=x.host)
            for plan, g in zip(self._plans, self._passes.groups, strict=True)
        ]
        (ids_T, hidden_TE), table, foretold = carry, last_ids, []
        for number, known_T in enumerate(x.ahead.known, 1):
            ids_T = self._take(self._take(known_T, x.ahead.shift, ids_T), x.ahead.rows, table)
            logits_LV, hidden_TE, kv = self._passes(w, number, (ids_T, hidden_TE), x, plans, kv)
            foretold.append(self._likeliest(w, x, logits_LV))
            table = scratch = self._put(scratch, x.output_rows, foretold[-1])
        return tuple(foretold), scratch, kv

    def _likeliest(self, w: Weights, x: StepInput, logits_LV: torch.Tensor) -> Any:
        limits = x.temperature, x.top_k, x.top_p, x.seed, x.counter
        places_L = self._sample(logits_LV, *limits, greedy=True, top_k_max=1)
        if self._passes.ids is None:
            return places_L
        ids = w[self._passes.ids]
        return self._take(ids[:1].expand(places_L.shape), places_L, ids)  # place 0 means no place
