"""The examination of `sample`: each draw is held to its seed.

The generator and the order of tokens are part of the contract, so a draw has one right id, or a few where float32
sums may round either way. Statistics of many draws would tell less.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from conformance.bounds import EXP_ERROR, W, kappa
from conformance.case import Case
from conformance.draw import Draw, Floats, exact, stored
from conformance.judge import Expected
from conformance.oracle import sampling
from conformance.row_exam import Inputs, Outputs, RowExam
from conformance.target import Bench
from core.plugin.facts import DTYPES, Need

_SIZES = ((64, 5), (64, 300))
"""Rows and vocabulary."""

_LARGE = ((2, 49152), (2, 151936))
"""The second is more than 16 bits count."""

_PARAMS = ("temperature", "top_k", "top_p", "seed", "counter")
_FAMILIES = ("plain", "top_k", "top_p", "both", "peaky", "flat", "ties", "mixed")


class SampleExam(RowExam):
    """ids[L] from logits[L, V]."""

    row = "sample"

    def cases(self) -> Iterator[Case]:
        for dtype in DTYPES:
            for num, size in _SIZES:
                for family in _FAMILIES:
                    yield Case.of(self.row, family, dtype=dtype, rows=num, vocab=size)
                yield Case.of(self.row, "greedy", dtype=dtype, rows=num, vocab=size)
            for num, size in _LARGE:
                for family in ("plain", "both", "greedy", "last"):
                    yield Case.of(self.row, family, dtype=dtype, rows=num, vocab=size)
            yield Case.of(self.row, "last", dtype=dtype, rows=7, vocab=300)
            for num in (7, 20):
                yield Case.of(self.row, "equals", dtype=dtype, rows=num, vocab=50)
            yield Case.of(self.row, "ties", dtype=dtype, rows=7, vocab=300)
            yield Case.of(self.row, "seeds", dtype=dtype, rows=500, vocab=97)
            yield Case.of(self.row, "broken", dtype=dtype, rows=12, vocab=300)
            yield Case.of(self.row, "edge", dtype=dtype, rows=7, vocab=1)
            for number in range(3):
                yield Case.of(self.row, "random", dtype=dtype, number=number)

    def need(self, case: Case) -> Need:
        return Need(dtype=case["dtype"])

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        num, size = case.get("rows"), case.get("vocab")
        if case.family == "random":
            num, size = draw.integer(1, 40), draw.integer(2, 2000)
        logits = stored(_logits(case.family, draw, num, size), case["dtype"])
        if case.family == "broken":
            _break(logits)
        if case.family == "mixed":
            logits[-1, size // 2] = float("nan")
        given = {
            "temperature": 0.25 + 1.5 * draw.uniform(num),
            "top_k": np.zeros(num, np.int64),
            "top_p": np.ones(num),
            "seed": draw.integers(-(2**31), 2**31, num, 2),
            "counter": draw.integers(0, 2**31, num),
        }
        if case.family in ("top_k", "both", "mixed", "ties", "random"):
            given["top_k"] = draw.integers(-1, min(size, 60) + 1, num)
        if case.family in ("top_p", "both", "mixed", "ties", "random"):
            given["top_p"] = 0.02 + 0.98 * draw.uniform(num)
        if case.family == "both":
            given["top_k"] = np.maximum(given["top_k"], 1)  # so that the kernel need not sort whole rows
        if case.family == "equals":
            given["top_k"][:] = 2
        if case.family in ("mixed", "greedy", "last"):
            given["temperature"][:: {"greedy": 1, "last": 2, "mixed": 3}[case.family]] = 0
        if case.family == "seeds":
            _vary_one_at_a_time(given, logits)
        by_p_alone = (given["top_p"] < 1) & (given["top_k"] <= 0)
        return {
            "logits": logits,
            **{name: torch.from_numpy(given[name]).to(_dtype(name)) for name in _PARAMS},
            "greedy": case.family == "greedy",
            "top_k_max": 0 if by_p_alone.any() else int(given["top_k"].max(initial=0)),
        }

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        kernel = bench.bind(self.row)
        tensors = [bench.put(name, inputs[name]) for name in ("logits", *_PARAMS)]
        return {"ids": bench.get(kernel(*tensors, greedy=inputs["greedy"], top_k_max=inputs["top_k_max"]))}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        """The id that must be drawn; of several between which rounding decides, the one that was."""
        logits = exact(inputs["logits"])
        slack = EXP_ERROR + 2 * kappa(logits.shape[1]) * W
        u = sampling.uniform(inputs["seed"].long().numpy(), inputs["counter"].long().numpy())
        temperature, top_k, top_p = (exact(inputs[name]) for name in ("temperature", "top_k", "top_p"))
        drawn = outputs["ids"].tolist()
        wanted = []
        for row, values in enumerate(logits):
            allowed = sampling.admissible(values, temperature[row], int(top_k[row]), top_p[row], float(u[row]), slack)
            wanted.append(drawn[row] if row < len(drawn) and drawn[row] in allowed else min(allowed))
        return {"ids": Expected(bits=torch.tensor(wanted, dtype=torch.int32))}


def _dtype(name: str) -> torch.dtype:
    return torch.float32 if name in ("temperature", "top_p") else torch.int32


def _logits(family: str, draw: Draw, num: int, size: int) -> Floats:
    logits = 3 * draw.normal(num, size)
    if family == "peaky":
        logits *= 30
    elif family == "flat":
        logits *= 1e-3
    elif family in ("ties", "greedy"):
        logits = np.round(logits)
    elif family == "equals":
        logits[:] = 0
    elif family == "last":  # nearly always drawn
        logits[:, -1] = 60
    return logits


def _break(logits: torch.Tensor) -> None:
    """Rows that nothing can be drawn from, and masked ones from which something can."""
    inf = float("inf")
    logits[0, 7] = float("nan")
    logits[1, 3] = inf
    logits[2] = -inf
    logits[3] = -inf
    logits[3, 299] = 1.0
    logits[4] = float("nan")
    logits[5, 1:] = -inf
    logits[6, ::2] = -inf
    logits[7, :] = 0.0
    logits[8, 0] = -0.0


def _vary_one_at_a_time(given: dict[str, np.ndarray], logits: torch.Tensor) -> None:
    """The same logits in every row, under seeds and counters that differ in one word or one bit."""
    logits[:] = logits[0]
    given["temperature"][:] = 1.0
    num = len(given["counter"])
    given["counter"][: num // 2] = np.arange(num // 2)
    given["seed"][: num // 2] = given["seed"][0]
    given["counter"][num // 2 :] = 7
    given["seed"][num // 2 :, 1] = given["seed"][0, 1]
    given["seed"][num - num // 4 :, 0] = given["seed"][0, 0]
    given["seed"][num - num // 4 :, 1] = np.arange(num // 4)


EXAMS: tuple[RowExam, ...] = (SampleExam(),)
