"""Runs steps on one device: holds the model, its weights, the KV planes and the rows.

Owns nothing of scheduling: it sees plans and answers with ids. Everything here runs on the device's launch thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from core.clock import SYSTEM
from core.engine.canonical import Canonical
from core.engine.compiled import CompiledStep, Compiles, warm_up
from core.engine.flight import Beside, Flight, Foretold, Reported, Wanted
from core.engine.pack import Packer
from core.engine.passes import Carry
from core.engine.replayed import ReplayedStep
from core.engine.rows import Rows
from core.engine.step import StepDropped, StepPlan
from core.engine.step_function import StepFunction
from core.engine.step_input import StepInput
from core.engine.transfers import Transfers
from core.model.layers import Planes, Weights
from core.plan import Plan
from core.plugin.device import Device, Event
from core.speculate.choice import parse_speculative


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
        self._replayed = (
            ReplayedStep(step, device, plan.replayed_tokens) if plan.replayed_tokens and not compiles else None
        )
        self._step = self._compiled or self._replayed or step
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
            num_drafts=parse_speculative(plan.speculative).max_drafts if plan.speculative else 0,
            num_ahead=step.foretell.num_drafts if step.foretell else 0,
            keeps_first=step.foretell.keeps_first if step.foretell else False,
            replayed_tokens=plan.replayed_tokens if self._replayed else 0,
        )
        self.pack = self._packer.pack  # a call that a profile may wrap
        self.take_masks: Callable[[], bytes] = bytes  # waits for the masks of the step being launched; empty: dropped
        num_beside = self._packer.max_logits if plan.speculative else 0  # rows for what is drawn beside drafts
        keep: Callable[[torch.Tensor], torch.Tensor] = device.keep if self._compiled else lambda table: table
        size = num_rows + num_beside
        self._last_ids, self._scratch = (keep(torch.zeros(size, dtype=torch.int32, device=where)) for _ in range(2))
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
        num_made = self._num_made
        logits_LV, hidden_LE, carry, self.kv = self._step.forward(self.weights, x, self._last_ids, self.kv)
        drawn = self._step.draw(x.draws, logits_LV, self._last_ids, self._masks(plan, x))
        ids_L, self._last_ids, num_accepted_L = drawn
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
            reported = tuple(self._arriving(values, arrived) for values in on_device)
        foretold = self._foretell(x, carry) if carry and plan.foretells else None
        return Flight(
            self.transfers,
            ids=host,
            num_ids=plan.num_draws,
            arrived=arrived,
            accepted=None if num_accepted_L is None else self._arriving(num_accepted_L, arrived),
            reported=reported,
            wanted=wanted,
            scored=scored,
            hidden=self._wanted_rows(plan.embeds, hidden_LE, arrived) if plan.embeds else None,
            embeds=plan.embeds,
            beside=beside,
            foretold=foretold,
            compiled=self._num_made > num_made,
        )

    @property
    def _num_made(self) -> int:
        """Parts of steps that the device made for their shape so far."""
        shaped = self._compiled or self._replayed
        return shaped.num_made if shaped else 0

    def _arriving(self, values: torch.Tensor, arrived: list[Event]) -> torch.Tensor:
        """Where these are on the host once all of `arrived` has come."""
        host = self._device.host_empty(tuple(values.shape), values.dtype)
        arrived.append(self._device.d2h(host, values))
        return host

    def _foretell(self, x: StepInput, carry: Carry) -> Foretold:
        """Let the draft layers follow, and start copying what they foretell."""
        assert self._step.foretell
        start_s = SYSTEM.now_s()
        tables = self._last_ids, self._scratch, self.kv
        foretold, self._scratch, self.kv = self._step.foretell(self.weights, x, carry, *tables)
        arrived: list[Event] = []
        hosts = [self._arriving(ids_L, arrived) for ids_L in foretold]
        return Foretold(hosts, arrived, SYSTEM.now_s() - start_s)

    def _wanted_rows(self, embeds: list[int], hidden_LE: torch.Tensor, arrived: list[Event]) -> torch.Tensor:
        """Start copying the rows of these draws, and of those between: one copy, and few rows more."""
        rows = slice(embeds[0], embeds[-1] + 1)
        # What a compiled step gives can only be copied whole.
        rows_KE = hidden_LE if self._compiled else hidden_LE[rows]
        host_KE = self._arriving(rows_KE, arrived)
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
        """On a device that compiles, compile every shape there can be; `progress` gets shapes done, and in all.

        Where steps are replayed, see whether they can be; the plan says so.
        """
        if self._compiled:
            state = self.weights, self._last_ids, self._scratch, self.kv
            tell = progress or (lambda done, total: None)
            self._last_ids, self._scratch, self.kv = warm_up(self._compiled, self._packer, *state, tell)
            self._device.synchronize()
        if self._replayed:
            tables = self._last_ids, self._scratch, self.kv
            self._last_ids, self._scratch, self.kv, note = self._replayed.warm_up(self._packer, self.weights, *tables)
            self.plan = replace(self.plan, notes=(*self.plan.notes, note))

    @property
    def num_replayed(self) -> int:
        """Parts of steps that the device replayed so far."""
        return self._replayed.num_replayed if self._replayed else 0

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
        logits_LV, _, _, self.kv = self._step.forward(self.weights, x, self._last_ids, self.kv)
        _, self._last_ids, _ = self._step.draw(x.draws, logits_LV, self._last_ids, self._masks(plan, x))
        host_LV = self._device.host_empty(tuple(logits_LV.shape), logits_LV.dtype)
        self._device.d2h(host_LV, logits_LV).synchronize()
        scored = sum(c - d for c, d, scores in zip(plan.counts, plan.samples, plan.scores, strict=True) if scores)
        return host_LV[: plan.num_draws + scored].float()
