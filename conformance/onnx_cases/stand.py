"""Where a case stands while kernels work on it: what an adapter is, what it may use, and what is recorded of it.

An adapter hands numbers of a case to kernels and hands back what they gave. It may move, view, repeat, pad, split and
cast them, and put constants beside them. What the operator computes, kernels compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from conformance.onnx_cases.load import OnnxCase
from conformance.target import Bench, Target
from core.kernels.bind import REFERENCE
from core.kernels.dtypes import DTYPE_NAMES
from core.kernels.row import Kernel
from core.kernels.table import TABLE
from core.plugin.facts import DTYPES, Need


class Stand(Bench):
    """A bench that records whose kernels were called.

    need   what was asked of the kernels: adapters pad head sizes and pages to it
    """

    def __init__(self, target: Target, row: str, provider: str, need: Need) -> None:
        super().__init__(target, row, provider, need)
        self.need = need
        self._main = row
        self._called: set[str] = set()

    def bind(self, row: str, **fixed: Any) -> Kernel:
        return partial(self._note, row, super().bind(row, **fixed))

    def _note(self, row: str, kernel: Kernel, *args: Any, **kwargs: Any) -> Any:
        self._called.add(row)
        return kernel(*args, **kwargs)

    @property
    def references(self) -> list[str]:
        """Rows that the device's kernels did not answer, as the binder recorded it; the row of the case, if not called.

        A form that only another row reads (pack_weight) belongs to that row.
        """
        own = {b.row for b in self._kernels.bindings() if b.provider != REFERENCE}
        needed = {self._main} | {row for row in self._called if not TABLE[row].reader}
        return sorted(needed - (own & self._called))


Outputs = dict[str, torch.Tensor]


def plain_need(case: OnnxCase) -> Iterator[Need]:
    """Of a case without sizes that implementations tell apart: the dtype of its first input."""
    dtype = DTYPE_NAMES.get(next(iter(case.inputs.values())).dtype)
    yield Need(dtype=dtype if dtype in DTYPES else None)


@dataclass(frozen=True)
class Adapter:
    """How cases are put to a row.

    row     that is asked
    how     what of the row's contract takes them, for people
    call    lays a case out on a stand, calls kernels, and gives the operator's outputs by name
    needs   what may be asked of an implementation, best first: the first need that it takes is
    """

    row: str
    how: str
    call: Callable[[OnnxCase, Stand], Outputs]
    needs: Callable[[OnnxCase], Iterator[Need]] = plain_need

    def __str__(self) -> str:
        return f"{self.row}: {self.how}"


def only(case: OnnxCase, y: torch.Tensor) -> Outputs:
    """The one output of a case."""
    (name,) = case.outputs
    return {name: y}
