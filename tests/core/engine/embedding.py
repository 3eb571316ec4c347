"""Serves requests for embeddings beside others, and compares them with transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from core.config import EngineConfig
from core.engine.engine import Engine
from core.engine.front import Front
from core.request import Request, SamplingParams, SequenceOutput


@dataclass
class Served:
    """What became of some requests: outputs of embeddings, and ids of the others, in the order asked for."""

    embeds: list[SequenceOutput] = field(default_factory=list)
    ids: list[list[int]] = field(default_factory=list)

    @property
    def vectors(self) -> list[np.ndarray]:
        return [np.frombuffer(output.embedding, "<f4") for output in self.embeds]


class Server:
    """An engine, and a front of it."""

    def __init__(self, model: Path | str, tap: Any = None, **options: Any) -> None:
        self.engine = Engine(EngineConfig(model=str(model), **options), tap=tap)
        self.front = Front(self.engine.info(), [])
        self._num_requests = 0

    def serve(self, prompts: Sequence[list[int]], others: Sequence[tuple[list[int], SamplingParams]] = ()) -> Served:
        """Embeddings of `prompts` and tokens after `others`, in turns, all of them at once."""
        requests: list[Request] = []
        for i in range(max(len(prompts), len(others))):
            if i < len(others):
                requests.append(self.front.request(*others[i], request_id=self._name("g")))
            if i < len(prompts):
                requests.append(self.front.embed_request(prompts[i], request_id=self._name("e")))
        for request in requests:
            self.engine.add(request)
        outputs: dict[str, list[SequenceOutput]] = {request.request_id: [] for request in requests}
        while self.engine.busy:
            for output in self.engine.step():
                assert output.error is None, output.error
                outputs[output.request_id].append(output)
        self.check_nothing_leaked()
        served = Served()
        for request in requests:
            mine = outputs[request.request_id]
            if request.pooling is None:
                assert not any(output.embedding for output in mine)
                served.ids.append([i for output in mine for i in output.new_ids])
            else:
                (output,) = mine
                assert (output.new_ids, output.finish_reason, output.stop_id) == ([], "stop", None)
                served.embeds.append(output)
        return served

    def _name(self, kind: str) -> str:
        self._num_requests += 1
        return f"{kind}{self._num_requests}"

    def check_nothing_leaked(self) -> None:
        self.engine.scheduler.check_idle()
        for pool in self.engine.cache.pools:
            assert pool.num_used == 0
            assert not pool.refs.any()


@cache
def reference(model: str) -> Any:
    """The model without its head in transformers, float32."""
    from transformers import AutoModel

    return AutoModel.from_pretrained(model, dtype=torch.float32).eval()


@torch.inference_mode()
def wanted(model: Path | str, prompt: list[int], normalize: bool = False) -> np.ndarray:
    hidden_E = reference(str(model))(torch.tensor([prompt])).last_hidden_state[0, -1]
    if normalize:
        hidden_E = torch.nn.functional.normalize(hidden_E, dim=0)
    vector: np.ndarray = hidden_E.numpy()
    return vector


def worst_error(model: Path | str, prompts: Sequence[list[int]], vectors: Sequence[np.ndarray], **how: Any) -> float:
    """Largest distance from transformers' embedding, relative to its norm."""
    assert len(prompts) == len(vectors)
    pairs = [(wanted(model, prompt, **how), vector) for prompt, vector in zip(prompts, vectors, strict=True)]
    assert all(a.shape == b.shape for a, b in pairs)
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(a)) for a, b in pairs)
