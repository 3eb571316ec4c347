"""How one kernel is examined: what every file in `conformance/kernels` supplies per row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from conformance.case import Case, Finding
from conformance.draw import Draw
from conformance.judge import Expected
from conformance.target import Bench, Target
from core.plugin.facts import Need, Support

Inputs = Mapping[str, Any]
Outputs = dict[str, torch.Tensor]


class RowExam(ABC):
    """The examination of one row.

    row         as in the table
    may_change  names of inputs (as given to `Bench.put`) that the kernel may write to
    repeats     how often the call is made with the same inputs, where the case has no `repeats` of its own; results
                must be the same bits
    """

    row: str
    may_change: tuple[str, ...] = ()
    repeats: int = 2

    @abstractmethod
    def cases(self) -> Iterable[Case]:
        """Every case that any device may be asked, the same for all devices: the mustpass list."""

    def claims(self, support: Support) -> Iterable[Case]:
        """Cases at the extremes of what an implementation says it takes, beyond those of `cases`."""
        return ()

    @abstractmethod
    def need(self, case: Case) -> Need:
        """What the case asks of an implementation; one that refuses it does not support the case."""

    def refusal(self, case: Case, target: Target, provider: str) -> str | None:
        """Why a target does not support the case with this provider's kernel; None when it does."""
        return target.refusal(self.row, provider, self.need(case))

    @abstractmethod
    def inputs(self, case: Case, draw: Draw) -> Inputs:
        """Tensors on the host, in the dtypes they are stored in, and plain values. Everything comes from `draw`."""

    @abstractmethod
    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        """Lay the inputs out on the device, call the kernel, and fetch what it gave. Computes nothing itself.

        Outputs that are not judged by `expect` may be there for it to start from, such as stored KV entries.
        """

    @abstractmethod
    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        """What outputs must be, from inputs alone, in float64. Of `outputs` it may read what was stored on the way."""

    def relations(self, case: Case, inputs: Inputs, outputs: Outputs, bench: Bench) -> list[Finding]:
        """Check F: how results of changed inputs relate to `outputs`. Calls the kernel again."""
        return []
