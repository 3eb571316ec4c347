"""Calls of a kernel, laid out once and made many times.

A case is called as its examination calls it, on a bench that remembers the kernel and the tensors it was given; what
is timed is that call alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.case import Case
from conformance.row_exam import Inputs, Outputs, RowExam
from conformance.target import Bench, Target
from core.kernels.row import Kernel
from core.plugin.facts import Need


class CapturingBench(Bench):
    """Remembers the last call of the kernel under examination."""

    def __init__(self, target: Target, row: str, provider: str, need: Need) -> None:
        super().__init__(target, row, provider, need)
        self._watched = row
        self.call: Callable[[], Any] | None = None

    def bind(self, row: str, **fixed: Any) -> Kernel:
        kernel = super().bind(row, **fixed)
        if row != self._watched:
            return kernel

        def remembered(*args: Any, **more: Any) -> Any:
            self.call = lambda: kernel(*args, **more)
            return self.call()

        return remembered


class Captured:
    """One call, its inputs, and what it gave when it was captured."""

    def __init__(self, exam: RowExam, case: Case, target: Target, provider: str, inputs: Inputs) -> None:
        self._exam, self._case = exam, case
        self._bench = CapturingBench(target, exam.row, provider, exam.need(case))
        self.inputs = inputs
        self.outputs: Outputs = exam.call(case, inputs, self._bench)
        assert self._bench.call is not None, exam.row
        self.call = self._bench.call

    @property
    def provider(self) -> str:
        return self._bench.provider

    def again(self) -> Outputs:
        """The same call, laid out anew in the same memory: what it gives now."""
        return self._exam.call(self._case, self.inputs, self._bench)
