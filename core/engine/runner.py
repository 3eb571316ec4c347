"""Runs steps on one device: holds the model, its weights, the KV planes and the rows.

Owns nothing of scheduling: it sees plans and answers with ids. Everything here runs on the device's launch thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from core.engine.canonical import Canonical
from core.engine.compiled import CompiledStep, Compiles, warm_up
from core.engine.flight import Beside, Flight, Reported, Wanted
from core.engine.pack import DrawInput, Packer, StepInput
from core.engine.rows import Rows
from core.engine.step import StepDropped, StepPlan
from core.engine.transfers import Transfers
from core.kernels.bind import KernelSet
from core.kv.groups import KVGroup
from core.model.layers import Model, Planes, Weights
from core.plan import Plan
from core.plugin.device import Device, Event
from core.plugin.facts import Need


class StepFunction:
    """The static form of a step: tensors in, tensors out, arithmetic only in kernels.

    It has two halves, so that the second one may wait for masks, and be made for shapes of its own:
    forward(weights, input, last_ids, kv) -> (logits_LV, hidden_LE, kv), and
    draw(draws of the input, logits_LV, last_ids) -> (ids_L, last_ids_R).
    """

    def __init__(
        self, model: Model, kernels: KernelSet, groups: tuple[KVGroup, ...], plan: Plan, process_group: Any
    ) -> None:
        need = Need(dtype=plan.dtype)
        self._model = model
        rows = ("take_ids", "put_ids", "sample", "add_bias", "penalize", "apply_mask", "min_p", "logprobs_topk")
        self._kernels = {row: kernels.bind(row, need) for row in rows}
        # Ranks draw from the same logits; that they agree is made certain, not assumed.
        self._share = kernels.bind("broadcast", need, group=process_group, source=0) if process_group else None
        self._plans = [
            kernels.bind(
                "attn_plan",
                Need(dtype=plan.dtype, head_size=g.head_size, page_tokens=plan.page_tokens),
                page_tokens=plan.page_tokens,
                window=g.retain,
            )
            for g in groups
        ]

    def forward(
        self, w: Weights, x: StepInput, last_ids: torch.Tensor, kv: list[list[Planes]]
    ) -> tuple[torch.Tensor, torch.Tensor, list[list[Planes]]]:
        """Everything up to the logits."""
        ids_T = self._kernels["take_ids"](x.token_ids, x.source_rows, last_ids)
        plans = [
            plan(x.query_starts, x.kv_lens, table, num_tokens=x.key.tokens, host=x.host)
            for plan, table in zip(self._plans, x.block_tables, strict=True)
        ]
        return self._model(w, ids_T, x, plans, kv)

    def draw(
        self, x: DrawInput, logits_LV: torch.Tensor, last_ids: torch.Tensor, grammar_LW: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids drawn, and last_ids with them; grammar_LW has bits of what grammars allow."""
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
        return ids_L, self._kernels["put_ids"](last_ids, x.output_rows, ids_L)

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


class Runner:
    """One rank's device at work."""

    def __init__(
        self,
        device: Device,
        where: torch.device,
        plan: Plan,
        step: StepFunction,
        weights: Weights,
        kv: list[list[Planes]],
        *,
        transfers: Transfers,
        canonical: Canonical | None,
        max_blocks: int,
        vocab_size: int,
        compiles: bool,
    ) -> None:
        """canonical   None where nothing but steps can read KV planes
        compiles    steps are compiled; then `weights` and `kv` are as the device keeps them
        """
        num_rows, sets = plan.max_num_seqs + 1, plan.pipeline_depth + 1
        self.plan = plan
        self._device = device
        self._compiled = CompiledStep(step, device) if compiles else None
        self._step = self._compiled or step
        self.weights = weights
        self.kv = kv  # per group, per layer: its planes
        self.transfers = transfers
        self._canonical = canonical
        self._rows = Rows(num_rows, max_blocks, len(kv))
        self._packer = Packer(
            device,
            where,
            self._rows,
            page_tokens=plan.page_tokens,
            shapes=plan.shapes,
            max_tokens=plan.max_num_batched_tokens,
            max_seqs=plan.max_num_seqs,
            max_logits=plan.max_num_logits,
            max_blocks=max_blocks,
            sets=sets,
            vocab_size=vocab_size,
        )
        self.pack = self._packer.pack  # a call that a profile may wrap
        self.take_masks: Callable[[], bytes] = bytes  # waits for the masks of the step being launched; empty: dropped
        num_beside = self._packer.max_logits if plan.speculative else 0  # rows for what is drawn beside drafts
        last_ids = torch.zeros(num_rows + num_beside, dtype=torch.int32, device=where)
        self._last_ids = device.keep(last_ids) if self._compiled else last_ids
        self._ids = [device.host_empty((self._packer.max_logits,), torch.int32) for _ in range(sets)]
        self._turn = 0

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Flight:
        """Start one step, and the transfers that come with it."""
        self._rows.apply(plan)
        x = self.pack(plan) if plan.rows else None  # its inputs go first: they would wait for what is transferred
        self.transfers.start(plan, self.kv)
        if x is None:
            return Flight(self.transfers, plan.waits)
        logits_LV, hidden_LE, self.kv = self._step.forward(self.weights, x, self._last_ids, self.kv)
        ids_L, self._last_ids = self._step.draw(x.draws, logits_LV, self._last_ids, self._masks(plan, x))
        beside = Beside(self.transfers.started, self._device.record()) if self.transfers.under_way else None
        host = self._ids[self._turn]
        self._turn = (self._turn + 1) % len(self._ids)
        arrived = [self._device.d2h(host[: x.key.logits], ids_L)]
        on_device = self._step.report(x.draws, logits_LV, self._last_ids)
        reported: Reported | None = None
        wanted: list[Wanted] = []
        scored: list[tuple[int, int]] = []
        if on_device is not None:
            wanted, scored = self._wishes(plan)
            reported = tuple(self._device.host_empty(tuple(t.shape), t.dtype) for t in on_device)
            arrived += [self._device.d2h(dst, src) for dst, src in zip(reported, on_device, strict=True)]
        hidden = self._wanted_rows(plan.embeds, hidden_LE, arrived) if plan.embeds else None
        drawn = host, plan.num_draws, arrived
        return Flight(self.transfers, False, *drawn, reported, wanted, scored, hidden, plan.embeds, beside)

    def _wanted_rows(self, embeds: list[int], hidden_LE: torch.Tensor, arrived: list[Event]) -> torch.Tensor:
        """Start copying the rows of these draws, and of those between: one copy, and few rows more."""
        rows = slice(embeds[0], embeds[-1] + 1)
        # What a compiled step gives can only be copied whole.
        rows_KE = hidden_LE if self._compiled else hidden_LE[rows]
        host_KE = self._device.host_empty(tuple(rows_KE.shape), rows_KE.dtype)
        arrived.append(self._device.d2h(host_KE, rows_KE))
        return host_KE[rows] if self._compiled else host_KE

    def _masks(self, plan: StepPlan, x: StepInput) -> torch.Tensor | None:
        """What grammars allow: filled while the device is at the forward already. A compiled draw has all or nothing.

        Raises: StepDropped when none will come.
        """
        if not plan.masked:
            return self._packer.grammar_mask([], b"", x.key) if self._compiled and x.extras else None
        words = self.take_masks()
        if not words:
            raise StepDropped("the step was dropped before its masks came")
        return self._packer.grammar_mask(plan.masked, words, x.key)

    def _wishes(self, plan: StepPlan) -> tuple[list[Wanted], list[tuple[int, int]]]:
        """What `Flight` must know to tell whose log-probabilities are whose."""
        requests = [self._rows.wishes[row].request for row in plan.rows]
        num_draws = [samples + num for samples, num in zip(plan.samples, plan.num_drafts, strict=True)]
        drawing = [r for r, num in zip(requests, num_draws, strict=True) for _ in range(num)]
        wanted = [Wanted(r.logprobs, r.logprob_ids) if r else Wanted(-1, []) for r in drawing]
        scored = []
        for r, count, samples, scores in zip(requests, plan.counts, plan.samples, plan.scores, strict=True):
            if scores and r:
                scored.append((count - samples, r.prompt_logprobs))
        return wanted, scored

    @torch.inference_mode()
    def warm_up(self, progress: Callable[[int, int], None] | None = None) -> None:
        """On a device that compiles, compile every shape there can be; `progress` gets shapes done, and in all."""
        if self._compiled:
            state = self.weights, self._last_ids, self.kv
            tell = progress or (lambda done, total: None)
            self._last_ids, self.kv = warm_up(self._compiled, self._packer, *state, tell)
            self._device.synchronize()

    @property
    def compiles(self) -> Compiles:
        """What was compiled so far."""
        return self._compiled.compiles if self._compiled else Compiles()

    @property
    def can_exchange(self) -> bool:
        """Whether KV pages can be read and written in the canonical form."""
        return self._canonical is not None

    def read_pages(self, pages: list[list[int]]) -> list[torch.Tensor]:
        """Pages of each KV group in the canonical form, [layers, 2, N, page, H, D], on the host."""
        assert self._canonical is not None
        return self._canonical.read(self.kv, pages)

    def write_pages(self, pages: list[list[int]], entries: list[torch.Tensor]) -> None:
        """Write such entries into pages."""
        assert self._canonical is not None
        self._canonical.write(self.kv, pages, entries)

    def loses(self, *, launched: bool) -> bool:
        """Whether the KV cache went with a step that failed: while it was launched, or (`launched`) afterwards.

        What compiled functions are given is gone when they fail, and what they gave back fails with them.
        """
        return self._compiled is not None and (launched or self._compiled.has_lost)

    @torch.inference_mode()
    def logits(self, plan: StepPlan) -> torch.Tensor:
        """Run one step as `launch` would, and return its logits [L, V] on the host in float32: for conformance.

        Rows of draws come first, then those of scoring items, in order.
        """
        self._rows.apply(plan)
        x = self.pack(plan)
        logits_LV, _, self.kv = self._step.forward(self.weights, x, self._last_ids, self.kv)
        _, self._last_ids = self._step.draw(x.draws, logits_LV, self._last_ids, self._masks(plan, x))
        host_LV = self._device.host_empty(tuple(logits_LV.shape), logits_LV.dtype)
        self._device.d2h(host_LV, logits_LV).synchronize()
        scored = sum(c - d for c, d, scores in zip(plan.counts, plan.samples, plan.scores, strict=True) if scores)
        return host_LV[: plan.num_draws + scored].float()
