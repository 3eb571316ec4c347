"""Runs an engine with its logits recorded, and compares them with transformers at every position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from core.config import EngineConfig
from core.engine.engine import Engine
from core.engine.front import Front
from core.request import SamplingParams


@dataclass
class Recorder:
    """A tap: keeps the logits that each draw was made from, by (request's seed, position)."""

    logits: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)

    def __call__(self, row: str, kernel: Any) -> Any:
        if row != "sample":
            return kernel

        def sample(logits, temperature, top_k, top_p, seed, counter, **fixed):
            for i, position in enumerate(counter.tolist()):
                if position:
                    self.logits[int(seed[i, 0]), position] = logits[i].float().clone()
            return kernel(logits, temperature, top_k, top_p, seed, counter, **fixed)

        return sample


@dataclass
class Run:
    """What became of one prompt."""

    prompt: list[int]
    ids: list[int]
    reason: str
    num_cached: int
    logits: list[torch.Tensor]  # one per id in `ids`


class Recorded:
    """An engine whose draws are recorded."""

    def __init__(self, model: Path | str, **options: Any) -> None:
        self.recorder = Recorder()
        self.engine = Engine(EngineConfig(model=str(model), **options), tap=self.recorder)
        self.front = Front(self.engine.info(), [])
        self._next_seed = 1

    def run(self, prompts: Sequence[list[int]], max_tokens: int = 1, **sampling: Any) -> list[Run]:
        """Serve all prompts together, greedily."""
        seeds, requests = [], []
        for prompt in prompts:
            seed = self._next_seed
            self._next_seed += 1
            params = SamplingParams(temperature=0.0, max_tokens=max_tokens, seed=seed, **sampling)
            requests.append(self.front.request(prompt, params, request_id=str(seed)))
            seeds.append(seed)
        for request in requests:
            self.engine.add(request)
        ids: dict[str, list[int]] = {str(seed): [] for seed in seeds}
        ends: dict[str, tuple[str, int]] = {}
        while self.engine.busy:
            for output in self.engine.step():
                assert output.error is None, output.error
                ids[output.request_id] += output.new_ids
                if output.finish_reason:
                    ends[output.request_id] = (output.finish_reason, output.num_cached)
        runs = []
        for prompt, seed in zip(prompts, seeds, strict=True):
            drawn = ids[str(seed)]
            logits = [self.recorder.logits[seed, len(prompt) + i] for i in range(len(drawn))]
            runs.append(Run(prompt, drawn, *ends[str(seed)], logits))
        for pool in self.engine.cache.pools:
            assert pool.num_used == 0, "pages leaked"
        return runs

    def close(self) -> None:
        self.engine.close()


@cache
def reference(model: str) -> Any:
    """The model in transformers, float32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()


@torch.inference_mode()
def worst_error(model: Path | str, runs: Sequence[Run]) -> float:
    """Largest difference of any recorded logit from transformers' on the same ids."""
    oracle = reference(str(model))
    worst = 0.0
    for run in runs:
        wanted = oracle(torch.tensor([run.prompt + run.ids])).logits[0, len(run.prompt) - 1 : -1]
        worst = max(worst, (torch.stack(run.logits) - wanted).abs().max().item())
    return worst
