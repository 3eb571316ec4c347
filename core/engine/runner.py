"""Runs steps on one device: holds the model, its weights, the KV planes and the rows.

Owns nothing of scheduling: it sees plans and answers with ids. Everything here runs on the device's launch thread,
except `Flight.output`, which only waits and reads host memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from core.config import Plan
from core.engine.pack import Packer, Rows, ShapeKey, StepInput
from core.engine.step import StepOutput, StepPlan
from core.kernels.bind import KernelSet
from core.kv.groups import KVGroup
from core.model.layers import Model, Planes, Weights
from core.plugin.device import Device, Event
from core.plugin.facts import Need


@dataclass
class Flight:
    """A step that was launched."""

    ids: torch.Tensor
    num_ids: int
    arrived: Event

    def output(self) -> StepOutput:
        """Wait for the step and read what it drew."""
        self.arrived.synchronize()
        return StepOutput(self.ids[: self.num_ids].tolist())


class StepFunction:
    """The static form of a step: tensors in, tensors out, arithmetic only in kernels.

    step(weights, input, last_ids, kv) -> (ids_L, logits_LV, hidden_LE, last_ids_R, kv)
    """

    def __init__(
        self, model: Model, kernels: KernelSet, groups: tuple[KVGroup, ...], plan: Plan, process_group: Any
    ) -> None:
        need = Need(dtype=plan.dtype, max_seqs=plan.max_num_seqs)
        self._model = model
        self._take_ids = kernels.bind("take_ids", need)
        self._put_ids = kernels.bind("put_ids", need)
        self._sample = kernels.bind("sample", need)
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
        ids_T = self._take_ids(x.token_ids, x.source_rows, last_ids)
        plans = [
            plan(x.query_starts, x.kv_lens, table, num_tokens=x.key.tokens, host=x.host)
            for plan, table in zip(self._plans, x.block_tables, strict=True)
        ]
        logits_LV, hidden_LE, kv = self._model(w, ids_T, x, plans, kv)
        ids_L = self._sample(
            logits_LV,
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
        last_ids = self._put_ids(last_ids, x.output_rows, ids_L)
        return ids_L, logits_LV, hidden_LE, last_ids, kv


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
    ) -> None:
        num_rows, sets = plan.max_num_seqs + 1, plan.pipeline_depth + 1
        self.plan = plan
        self._device = device
        self._step = step
        self._weights = weights
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
        )
        self._last_ids = torch.zeros(num_rows, dtype=torch.int32, device=where)
        self._compiled: dict[ShapeKey, Any] = {}
        self._static = not plan.shapes.dynamic
        self._ids = [device.host_empty((self._packer.max_logits,), torch.int32) for _ in range(sets)]
        self._turn = 0

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Flight:
        """Start one step."""
        self._rows.apply(plan)
        x = self._packer.pack(plan)
        step = self._step_for(x.key)
        ids_L, _, _, self._last_ids, self._kv = step(self._weights, x, self._last_ids, self._kv)
        host = self._ids[self._turn]
        self._turn = (self._turn + 1) % len(self._ids)
        arrived = self._device.d2h(host[: x.key.logits], ids_L)
        return Flight(host, sum(plan.samples), arrived)

    def _step_for(self, key: ShapeKey) -> Any:
        """The step made for this key, where the device compiles at all: only its own shapes come back."""
        if not self._static:
            return self._step
        if key not in self._compiled:
            self._compiled[key] = self._device.compile(self._step, key)
        return self._compiled[key]

    @torch.inference_mode()
    def logits(self, plan: StepPlan) -> torch.Tensor:
        """Run one step and return its logits [L, V] on the host in float32: for tests and for conformance."""
        self._rows.apply(plan)
        x = self._packer.pack(plan)
        _, logits_LV, _, self._last_ids, self._kv = self._step(self._weights, x, self._last_ids, self._kv)
        self._device.synchronize()
        return logits_LV[: sum(plan.samples)].float().cpu()
