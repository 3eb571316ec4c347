"""What rows have in common whose kernels treat every token by itself: views, batch invariance, races, doubling.

Views keep their last axis contiguous, as those that core hands to kernels do; what lies between their rows is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

import torch

from conformance.case import Case, Finding, Value
from conformance.judge import same_bits
from conformance.row_exam import Inputs, Outputs, RowExam
from conformance.target import Bench
from core.plugin.facts import DTYPES, Need, Support

NUM_REPEATS = 100
MANY_TIMES = 1000
"""So that what goes wrong once in some hundred calls is seen."""

NUM_RANDOM = 3
NUM_ALONE = 12

VIEWS = {"apart": (8, 16), "offset": (3, 10)}
"""Family -> columns of a larger tensor before the view, and columns in all that are not in it."""

RMS_DTYPES = ("bfloat16", "float16")
"""Where check B applies: there the last rounding decides. In float32 the order of a sum does, and any is right."""


class ByToken(RowExam):
    """A row whose inputs `tokens` and outputs have tokens along their first axis.

    A case of family "invariant" asks whether a token's bits depend on the rest of the step; "races" asks NUM_REPEATS
    times, or `times`; "normal" asks whether inputs doubled by `doubled` give outputs `doubling` doubled, and the others
    as before.
    """

    tokens: tuple[str, ...] = ("x",)
    doubling: tuple[str, ...] = ("y",)

    def need(self, case: Case) -> Need:
        invariant = case.family == "invariant"
        return Need(dtype=case["dtype"], max_tokens=case["rows"], batch_invariant=invariant)

    def doubled(self, inputs: Inputs) -> Inputs | None:
        """Inputs of which the outputs `doubling` must be twice as large; None where no such relation holds."""
        return None

    def relations(self, case: Case, inputs: Inputs, outputs: Outputs, bench: Bench) -> list[Finding]:
        if case.family == "races":
            return self._repeated(case, inputs, outputs, bench)
        if case.family == "invariant":
            return self._in_other_steps(case, inputs, outputs, bench)
        if case.family == "normal" and case["dtype"] != "float16":  # where subnormal numbers are near
            return self._twice(case, inputs, outputs, bench)
        return []

    def _repeated(self, case: Case, inputs: Inputs, outputs: Outputs, bench: Bench) -> list[Finding]:
        found = []
        for _ in range(case.get("times", NUM_REPEATS) - self.repeats):
            again = self.call(case, inputs, bench)
            found += [same_bits(f"{name}, repeated", outputs[name], again[name]) for name in outputs]
        return found

    def _in_other_steps(self, case: Case, inputs: Inputs, outputs: Outputs, bench: Bench) -> list[Finding]:
        """Some tokens alone, and all of them at other places of a longer step."""
        found = []
        num = case["rows"]
        for at in range(0, num, -(-num // NUM_ALONE)):
            one = slice(at, at + 1)
            alone = self._call_with(case, inputs, bench, itemgetter(one))
            found += [same_bits(f"{n}, alone", outputs[n][one], alone[n], "F") for n in outputs]
        shift = num // 3
        longer = self._call_with(case, inputs, bench, lambda x: torch.cat((x[shift:], x, x[:shift])))
        for name, y in outputs.items():
            found.append(same_bits(f"{name}, elsewhere", y, longer[name][num - shift : 2 * num - shift], "F"))
        return found

    def _call_with(
        self, case: Case, inputs: Inputs, bench: Bench, change: Callable[[torch.Tensor], torch.Tensor]
    ) -> Outputs:
        return self.call(case, {**inputs, **{name: change(inputs[name]) for name in self.tokens}}, bench)

    def _twice(self, case: Case, inputs: Inputs, outputs: Outputs, bench: Bench) -> list[Finding]:
        changed = self.doubled(inputs)
        if changed is None:
            return []
        twice = self.call(case, changed, bench)
        return [
            same_bits(f"{name}, doubled", y * 2 if name in self.doubling else y, twice[name], "F")
            for name, y in outputs.items()
        ]


def laid(bench: Bench, name: str, x: torch.Tensor, family: str) -> torch.Tensor:
    """x on the device; in families of VIEWS as a part of a larger tensor full of NaN."""
    if family not in VIEWS:
        return bench.put(name, x)
    before, more = VIEWS[family]
    whole = x.new_full((x.shape[0] + 1, *x.shape[1:-1], x.shape[-1] + more), float("nan"))
    view = (slice(1, None), ..., slice(before, before + x.shape[-1]))
    whole[view] = x
    return bench.put(name, whole)[view]


def with_dtypes(cases: Sequence[Case]) -> Iterator[Case]:
    """Every case in every dtype that activations have."""
    for dtype in DTYPES:
        for case in cases:
            yield replace(case, params={"dtype": dtype, **case.params})


def claimed(support: Support, row: str, limits: Mapping[str, int | None], **small: Value) -> Iterator[Case]:
    """Cases with one size at its claimed limit, and the others `small`, in every claimed dtype."""
    for dtype in sorted(support.dtypes or DTYPES):
        for size, limit in limits.items():
            if limit is not None:
                yield Case.of(row, "claim", dtype=dtype, **{**small, size: limit})


def random_cases(row: str, **most: Value) -> list[Case]:
    """Cases whose sizes are drawn, up to these: nobody can have prepared for them."""
    return [Case.of(row, "random", **most, number=number) for number in range(NUM_RANDOM)]
