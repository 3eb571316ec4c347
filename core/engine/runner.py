"""Runs steps on one device: holds the model, its weights, the KV planes and the rows.

Owns nothing of scheduling: it sees plans and answers with ids. Everything here runs on the device's launch thread,
except `Flight.output`, which only waits and reads host memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from core.engine.pack import Packer, ShapeKey, StepInput
from core.engine.rows import Rows
from core.engine.step import StepDropped, StepOutput, StepPlan
from core.kernels.bind import KernelSet
from core.kv.groups import KVGroup
from core.model.layers import Model, Planes, Weights
from core.plan import Plan
from core.plugin.device import Device, Event
from core.plugin.facts import Need
from core.request import Logprobs


class Reported(NamedTuple):
    """Log-probabilities of a step's logit rows: of the token drawn or scored, and of the likeliest ones."""

    logprob_L: torch.Tensor
    rank_L: torch.Tensor
    top_logprobs_LK: torch.Tensor
    top_ids_LK: torch.Tensor


@dataclass
class Flight:
    """A step that was launched: what it draws, and log-probabilities and hidden states where asked for, on the host."""

    ids: torch.Tensor
    num_ids: int
    arrived: list[Event]
    reported: Reported | None
    wanted: list[int]  # per sampling item: how many likeliest tokens to report; -1: no report
    scored: list[tuple[int, int]]  # per scoring item: how many rows, how many likeliest tokens
    hidden: torch.Tensor | None  # rows of hidden states, from the first to the last that is wanted
    embeds: list[int]  # which draws' rows those are that are wanted

    @torch.inference_mode()
    def output(self) -> StepOutput:
        """Wait for the step and read what it drew."""
        for event in self.arrived:
            event.synchronize()
        ids = self.ids[: self.num_ids].tolist()
        if self.reported is None:
            return StepOutput(ids, hidden=self._hidden_states())
        rows = [list(column) for column in zip(*(column.tolist() for column in self.reported), strict=True)]
        logprobs = [_report(row, k) if k >= 0 else None for row, k in zip(rows, self.wanted, strict=False)]
        prompts, start = [], self.num_ids
        for size, k in self.scored:
            prompts.append([_report(row, k) for row in rows[start : start + size]])
            start += size
        return StepOutput(ids, logprobs, prompts, self._hidden_states())

    def _hidden_states(self) -> list[bytes]:
        if self.hidden is None:
            return []
        rows = self.hidden.float().numpy().astype("<f4")
        return [rows[i - self.embeds[0]].tobytes() for i in self.embeds]


def _report(row: list[Any], k: int) -> Logprobs:
    logprob, rank, top_logprobs, top_ids = row
    return Logprobs(logprob, rank, top_ids[:k], top_logprobs[:k])


class StepFunction:
    """The static form of a step: tensors in, tensors out, arithmetic only in kernels.

    step(weights, input, last_ids, kv) -> (ids_L, logits_LV, hidden_LE, last_ids_R, kv)

    Its two halves, `forward` and `draw`, are there for steps whose masks come while the first one runs.
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

    def __call__(
        self, w: Weights, x: StepInput, last_ids: torch.Tensor, kv: list[list[Planes]]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, list[list[Planes]]]:
        logits_LV, hidden_LE, kv = self.forward(w, x, last_ids, kv)
        ids_L, last_ids = self.draw(x, logits_LV, last_ids)
        return ids_L, logits_LV, hidden_LE, last_ids, kv

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
        self, x: StepInput, logits_LV: torch.Tensor, last_ids: torch.Tensor, grammar_LW: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids drawn, and last_ids with them; grammar_LW has bits of what grammars allow."""
        ids_L = self._kernels["sample"](
            self._shaped(logits_LV, x, grammar_LW),
            x.temperature,
            x.top_k,
            x.top_p,
            x.seed,
            x.counter,
            greedy=x.key.greedy,
            top_k_max=x.key.top_k_max,
        )
        if self._share:
            ids_L = self._share(ids_L)
        return ids_L, self._kernels["put_ids"](last_ids, x.output_rows, ids_L)

    def _shaped(self, logits_LV: torch.Tensor, x: StepInput, grammar_LW: torch.Tensor | None) -> torch.Tensor:
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

    def report(self, x: StepInput, logits_LV: torch.Tensor, last_ids: torch.Tensor) -> Reported | None:
        """Log-probabilities after a step, where its requests want some."""
        e = x.extras
        if e is None or e.num_logprobs is None:
            return None
        # Rows that were drawn from report what was drawn; rows that score have output row 0 and keep their target.
        tokens_L = self._kernels["take_ids"](e.targets, x.output_rows, last_ids)
        return Reported(*self._kernels["logprobs_topk"](logits_LV, tokens_L, k=e.num_logprobs))


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
        max_blocks: int,
        vocab_size: int,
    ) -> None:
        num_rows, sets = plan.max_num_seqs + 1, plan.pipeline_depth + 1
        self.plan = plan
        self._device = device
        self._step = step
        self.weights = weights
        self._kv = kv
        self._rows = Rows(num_rows, max_blocks, len(kv))
        self._packer = Packer(
            device,
            where,
            self._rows,
            page_tokens=plan.page_tokens,
            shapes=plan.shapes,
            max_tokens=plan.max_num_batched_tokens,
            max_seqs=plan.max_num_seqs,
            max_blocks=max_blocks,
            sets=sets,
            vocab_size=vocab_size,
        )
        self.pack = self._packer.pack  # a call that a profile may wrap
        self.take_masks: Callable[[], bytes] = bytes  # waits for the masks of the step being launched; empty: dropped
        self._last_ids = torch.zeros(num_rows, dtype=torch.int32, device=where)
        self._compiled: dict[ShapeKey, Any] = {}
        self._static = not plan.shapes.dynamic
        self._ids = [device.host_empty((self._packer.max_logits,), torch.int32) for _ in range(sets)]
        self._turn = 0

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Flight:
        """Start one step."""
        self._rows.apply(plan)
        x = self.pack(plan)
        if plan.masked:
            ids_L, logits_LV, hidden_LE = self._masked_step(plan, x)
        else:
            step = self._step_for(x)
            ids_L, logits_LV, hidden_LE, self._last_ids, self._kv = step(self.weights, x, self._last_ids, self._kv)
        host = self._ids[self._turn]
        self._turn = (self._turn + 1) % len(self._ids)
        arrived = [self._device.d2h(host[: x.key.logits], ids_L)]
        on_device = self._step.report(x, logits_LV, self._last_ids)
        reported: Reported | None = None
        wanted: list[int] = []
        scored: list[tuple[int, int]] = []
        if on_device is not None:
            wanted, scored = self._wishes(plan)
            reported = Reported(*(self._device.host_empty(tuple(t.shape), t.dtype) for t in on_device))
            arrived += [self._device.d2h(dst, src) for dst, src in zip(reported, on_device, strict=True)]
        hidden = self._wanted_rows(plan.embeds, hidden_LE, arrived) if plan.embeds else None
        return Flight(host, sum(plan.samples), arrived, reported, wanted, scored, hidden, plan.embeds)

    def _wanted_rows(self, embeds: list[int], hidden_LE: torch.Tensor, arrived: list[Event]) -> torch.Tensor:
        """Start copying the rows of these draws, and of those between them: one copy, and few rows more."""
        rows_KE = hidden_LE[embeds[0] : embeds[-1] + 1]
        host_KE = self._device.host_empty(tuple(rows_KE.shape), rows_KE.dtype)
        arrived.append(self._device.d2h(host_KE, rows_KE))
        return host_KE

    def _masked_step(self, plan: StepPlan, x: StepInput) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Launch the forward, wait for the masks that are being filled meanwhile, then draw.

        Returns ids_L, logits_LV, hidden_LE.

        Raises: StepDropped when none will come.
        """
        logits_LV, hidden_LE, self._kv = self._step.forward(self.weights, x, self._last_ids, self._kv)
        words = self.take_masks()
        if not words:
            raise StepDropped("the step was dropped before its masks came")
        grammar_LW = self._packer.grammar_mask(plan, words, x.key)
        ids_L, self._last_ids = self._step.draw(x, logits_LV, self._last_ids, grammar_LW)
        return ids_L, logits_LV, hidden_LE

    def _wishes(self, plan: StepPlan) -> tuple[list[int], list[tuple[int, int]]]:
        """What `Flight` must know to tell whose log-probabilities are whose."""
        requests = [self._rows.wishes[row].request for row in plan.rows]
        wanted = [r.logprobs if r else -1 for r, samples in zip(requests, plan.samples, strict=True) if samples]
        scored = []
        for r, count, samples, scores in zip(requests, plan.counts, plan.samples, plan.scores, strict=True):
            if scores and r:
                scored.append((count - samples, r.prompt_logprobs))
        return wanted, scored

    def _step_for(self, x: StepInput) -> Any:
        """The step made for this shape, where the device compiles: only its own shapes come back.

        Extras have shapes of their own, so a step with some runs as it is; so does one that waits for masks.
        """
        if not self._static or x.extras is not None:
            return self._step
        if x.key not in self._compiled:
            self._compiled[x.key] = self._device.compile(self._step, x.key)
        return self._compiled[x.key]

    @torch.inference_mode()
    def logits(self, plan: StepPlan) -> torch.Tensor:
        """Run one step as `launch` would, and return its logits [L, V] on the host in float32: for conformance.

        Rows of draws come first, then those of scoring items, in order.
        """
        self._rows.apply(plan)
        x = self.pack(plan)
        step = self._step_for(x)
        _, logits_LV, _, self._last_ids, self._kv = step(self.weights, x, self._last_ids, self._kv)
        self._device.synchronize()
        scored = sum(c - d for c, d, scores in zip(plan.counts, plan.samples, plan.scores, strict=True) if scores)
        wanted_LV: torch.Tensor = logits_LV[: sum(plan.samples) + scored]
        return wanted_LV.float().cpu()
