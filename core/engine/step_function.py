"""What a step computes: tensors in, tensors out, arithmetic only in kernels.

Owns the order in which the model, the shaping of logits and the draw are called; it has no state beside what was bound.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from core.engine.flight import Reported
from core.engine.foretell import Foretell, attention_plan
from core.engine.passes import Carry
from core.engine.step_input import DrawInput, StepInput, VerifyInput
from core.kernels.bind import KernelSet
from core.kv.groups import KVGroup
from core.model.layers import Model, Planes, Weights
from core.model.mtp import check_family
from core.plan import Plan
from core.plugin.facts import Need


class StepFunction:
    """The static form of a step: tensors in, tensors out, arithmetic only in kernels.

    It has two halves, so that the second one may wait for masks, and be made for shapes of its own:
    forward(weights, input, last_ids, kv) -> (logits_LV, hidden_LE, carry, kv), and
    draw(draws of the input, logits_LV, last_ids) -> (ids_L, last_ids_R, num_accepted_L or None).
    Where there is something that foretells, `foretell` follows, and `carry` is for it; else both are None. `groups` are
    those of the model itself: others may come after them.
    """

    def __init__(
        self,
        model: Model,
        kernels: KernelSet,
        groups: tuple[KVGroup, ...],
        plan: Plan,
        process_group: Any,
        foretell: Foretell | None = None,
    ) -> None:
        need = Need(dtype=plan.dtype)
        self._model, self.foretell = model, foretell
        rows = ["take_ids", "put_ids", "sample", "add_bias", "penalize", "apply_mask", "min_p", "logprobs_topk"]
        rows += ["spec_verify"] if plan.speculative else []
        self._kernels = {row: kernels.bind(row, need) for row in rows}
        # Ranks draw from the same logits; that they agree is made certain, not assumed.
        self._share = kernels.bind("broadcast", need, group=process_group, source=0) if process_group else None
        self._plans = [attention_plan(kernels, group, plan) for group in groups]

    def forward(
        self, w: Weights, x: StepInput, last_ids: torch.Tensor, kv: list[list[Planes]]
    ) -> tuple[torch.Tensor, torch.Tensor, Carry | None, list[list[Planes]]]:
        """Everything up to the logits."""
        ids_T = self._kernels["take_ids"](x.token_ids, x.source_rows, last_ids)
        plans = [
            plan(x.query_starts, x.kv_lens, table, num_tokens=x.key.tokens, host=x.host)
            for plan, table in zip(self._plans, x.block_tables, strict=False)
        ]
        if self.foretell and self.foretell.reads_hidden:
            decoder = check_family(self._model)
            logits_LV, hidden_LE, hidden_TE, kv = decoder.all_states(w, ids_T, x, plans, kv)
            return logits_LV, hidden_LE, (ids_T, hidden_TE), kv
        logits_LV, hidden_LE, kv = self._model(w, ids_T, x, plans, kv)
        return logits_LV, hidden_LE, (ids_T, None) if self.foretell else None, kv

    def draw(
        self, x: DrawInput, logits_LV: torch.Tensor, last_ids: torch.Tensor, grammar_LW: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Ids drawn, last_ids with them, and how many drafts are right; grammar_LW has bits of what grammars allow."""
        ids_L = self._kernels["sample"](
            self._shaped(logits_LV, x, grammar_LW),
            x.temperature,
            x.top_k,
            x.top_p,
            x.seed,
            x.counter,
            greedy=x.greedy,
            top_k_max=x.top_k_max,
        )
        if self._share:
            ids_L = self._share(ids_L)
        last_ids = self._kernels["put_ids"](last_ids, x.output_rows, ids_L)
        if x.verify is None:
            return ids_L, last_ids, None
        num_accepted_L, last_ids = self._verify(x.verify, last_ids)
        return ids_L, last_ids, num_accepted_L

    def _verify(self, x: VerifyInput, last_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """How many drafts are right, and last_ids with the last id that counts in each sequence's row."""
        take, rows = self._kernels["take_ids"], x.drawn_rows.view(-1)
        drawn_LK1 = take(rows, rows, last_ids).view(x.drawn_rows.shape)
        num_accepted_L, row_L = self._kernels["spec_verify"](x.draft_ids, drawn_LK1, x.drawn_rows)
        return num_accepted_L, self._kernels["put_ids"](last_ids, x.kept_rows, take(row_L, row_L, last_ids))

    def _shaped(self, logits_LV: torch.Tensor, x: DrawInput, grammar_LW: torch.Tensor | None) -> torch.Tensor:
        """The logits to draw from: the model's, after what requests ask for. The model's own are left as they are."""
        e = x.extras
        if e and e.bias:
            logits_LV = self._kernels["add_bias"](logits_LV, *e.bias)
        if e and e.penalties:
            logits_LV = self._kernels["penalize"](logits_LV, *e.penalties)
        for mask_LW in (e.mask if e else None, grammar_LW):
            if mask_LW is not None:
                logits_LV = self._kernels["apply_mask"](logits_LV, mask_LW)
        if e and e.min_p is not None:
            logits_LV = self._kernels["min_p"](logits_LV, x.temperature, e.min_p)
        return logits_LV

    def report(self, x: DrawInput, logits_LV: torch.Tensor, last_ids: torch.Tensor) -> Reported | None:
        """Log-probabilities after a step, where its requests want some."""
        e = x.extras
        if e is None or e.num_logprobs is None:
            return None
        # Rows that were drawn from report what was drawn; rows that score have output row 0 and keep their target.
        tokens_L = self._kernels["take_ids"](e.targets, x.output_rows, last_ids)
        top = partial(self._kernels["logprobs_topk"], logits_LV, k=e.num_logprobs)
        named = [] if e.named is None else [top(ids_L)[0] for ids_L in e.named.unbind(1)]
        return (*top(tokens_L), *named)
