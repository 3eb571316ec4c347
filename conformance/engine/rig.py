"""Engines on the device under examination, and on the cpu device beside it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch

from conformance.case import Case
from conformance.engine.forced import Forced, Text
from conformance.engine.measure import Distance, distance
from conformance.engine.texts import location, texts
from core.config import EngineConfig
from core.engine.build import Assembly, assemble
from core.kernels.bind import REFERENCE, Tap
from core.kernels.row import Kernel
from core.kernels.table import TABLE

CPU = "cpu"
_REFERENCES = {row.name: REFERENCE for row in TABLE.values() if row.reader is None}


@dataclass(frozen=True)
class Rig:
    """A case on a device. `ids` are the texts of the case, [N, L]."""

    case: Case
    device: str
    ids: torch.Tensor

    @classmethod
    def of(cls, case: Case, device: str, seed: bytes) -> Rig:
        return cls(case, device, texts(case["model"], seed, case["num"], case["length"]))

    @property
    def length(self) -> int:
        return self.ids.shape[1]

    @property
    def drawn(self) -> int:
        """Tokens to draw after each text."""
        return int(self.case["drawn"])

    @property
    def prompts(self) -> list[list[int]]:
        found: list[list[int]] = self.ids.tolist()
        return found

    @property
    def alone(self) -> list[list[list[int]]]:
        """Each text a wave of its own."""
        return [[prompt] for prompt in self.prompts]

    @cached_property
    def assembly(self) -> Assembly:
        """The engine on the device, without weights: for what is decided before they are loaded."""
        return assemble(self.config())

    def config(self, device: str = "", **more: Any) -> EngineConfig:
        """Of an engine for the case; kernels that the device lacks run on their references, as bring-up allows."""
        options: dict[str, Any] = {"dtype": self.case["dtype"], **more}
        return EngineConfig(
            model=location(self.case["model"]), device=device or self.device, fallback="allow", **options
        )

    def forced(self, eager: bool = False, **more: Any) -> Forced:
        """A runner of the device with room for the texts of the case."""
        return Forced(self.config(**more), len(self.ids), self.length, eager=eager)

    def reference(self, ids: torch.Tensor, first: int) -> torch.Tensor:
        """Logits of the cpu device in float32 after the tokens from `first` on, the last excepted: [N, rows, V]."""
        return self._on_cpu(ids, first, "float32", {}, None)

    @cached_property
    def kv_error(self) -> float:
        """As the device's layouts of the cache declare it."""
        return max(float(layout.kv_error) for layout in self.assembly.layouts)

    def ours(self, ids: torch.Tensor, first: int, kv_error: float) -> torch.Tensor:
        """As `reference`, by our own engine in the dtype of the case, with KV entries of such an error."""
        tap = partial(_rounding, kv_error) if kv_error else None
        return self._on_cpu(ids, first, self.case["dtype"], _REFERENCES, tap)

    def noise(self, ids: torch.Tensor, first: int, reference: torch.Tensor) -> Distance:
        """How far our own engine is from the reference, with KV entries of declared error."""
        found = self.ours(ids, first, self.kv_error)
        return distance(found.flatten(0, 1), reference.flatten(0, 1), ids[:, first + 1 :].flatten())

    def noise_of_prompts(self) -> Distance:
        """The noise after each token of the texts that has a next one."""
        return self.noise(self.ids, 0, self.reference(self.ids, 0))

    def _on_cpu(
        self, ids: torch.Tensor, first: int, dtype: str, kernels: dict[str, str], tap: Tap | None
    ) -> torch.Tensor:
        forced = Forced(self.config(CPU, dtype=dtype, kernels=kernels), len(ids), ids.shape[1], tap)
        return in_chunks(forced, [forced.add(row) for row in ids], first)


def in_chunks(forced: Forced, added: list[Text], first: int) -> torch.Tensor:
    """Logits after the tokens from `first` on, text by text, in chunks as large as may be: [N, rows, V]."""
    rows = []
    for text in added:
        forced.fill(text, first)
        rows.append(forced.by_chunks(text, len(text.ids)))
    return torch.stack(rows)


def _rounding(kv_error: float, row: str, kernel: Kernel) -> Kernel:
    """A tap that rounds what is written to the cache, as coarsely as a layout with this error may."""
    if row != "kv_write":
        return kernel

    def write(k: torch.Tensor, v: torch.Tensor, *args: Any, **fixed: Any) -> Any:
        return kernel(rounded(k, kv_error), rounded(v, kv_error), *args, **fixed)

    return write


def rounded(x: torch.Tensor, kv_error: float) -> torch.Tensor:
    """Entries [T, H, D] on a grid whose greatest error is that part of the greatest magnitude among D."""
    wide = x.float()
    step = wide.abs().amax(-1, keepdim=True) * (2 * kv_error)
    return torch.where(step > 0, (wide / step).round() * step, wide).to(x.dtype)
