"""The examination of what changes logits before a draw, and of what reports about them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from conformance.bounds import EXP_ERROR, W, eta, kappa
from conformance.case import Case
from conformance.draw import Draw, exact, stored
from conformance.judge import Expected
from conformance.oracle import sampling
from conformance.row_exam import Inputs, Outputs, RowExam
from conformance.target import Bench
from core.plugin.facts import DTYPES, Need

_SIZES = ((1, 33), (6, 300), (2, 49152))
_SCALES = {"normal": 3.0, "large": 3e3, "small": 1e-4}


class LogitsExam(RowExam):
    """Logits [L, V] of several magnitudes and sizes; each subclass adds what its row takes."""

    def cases(self) -> Iterator[Case]:
        for dtype in DTYPES:
            for family in _SCALES:
                for num, size in _SIZES:
                    yield Case.of(self.row, family, dtype=dtype, rows=num, vocab=size)
            yield Case.of(self.row, "normal", dtype=dtype, rows=2, vocab=151936)
            yield Case.of(self.row, "masked", dtype=dtype, rows=5, vocab=300)
            yield Case.of(self.row, "offset", dtype=dtype, rows=6, vocab=300)
            yield Case.of(self.row, "ties", dtype=dtype, rows=5, vocab=300)
            yield Case.of(self.row, "edge", dtype=dtype, rows=3, vocab=1)
            for number in range(2):
                yield Case.of(self.row, "random", dtype=dtype, number=number)

    def need(self, case: Case) -> Need:
        return Need(dtype=case["dtype"])

    def logits(self, case: Case, draw: Draw) -> torch.Tensor:
        num, size = case.get("rows"), case.get("vocab")
        if case.family == "random":
            num, size = draw.integer(1, 20), draw.integer(2, 3000)
        values = _SCALES.get(case.family, 3.0) * draw.normal(num, size)
        if case.family == "ties":
            values = np.round(values)
        if case.family == "offset":  # all of a row far from 0: an exponential without its maximum taken off shows
            values += np.where(np.arange(num) % 2, 400.0, -400.0)[:, None]
        if case.family == "masked":
            values[:, 1 + draw.permutation(size - 1)[: size // 2]] = -np.inf
        return stored(values, case["dtype"])


class PenalizeExam(LogitsExam):
    """Repetition over prompt and output, frequency and presence over the output."""

    row = "penalize"

    def cases(self) -> Iterator[Case]:
        yield from super().cases()
        for dtype in DTYPES:
            yield Case.of(self.row, "long", dtype=dtype, rows=4, vocab=151936)
            yield Case.of(self.row, "often", dtype=dtype, rows=4, vocab=3)

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        logits = self.logits(case, draw)
        num, size = logits.shape
        width = 3000 if case.family in ("long", "often") else 48
        ids = size if case.family == "long" else min(size, 60)  # few, so that many come again
        history = draw.integers(0, ids, num, width)
        if case.family == "long":
            history[:, ::2] = 0
        lengths = draw.integers(0 if width == 48 else 2000, width + 1, num)
        history[np.arange(width) >= lengths[:, None]] = -1
        factors = np.stack([0.5 + 1.5 * draw.uniform(num), 4 * draw.uniform(num) - 2, 4 * draw.uniform(num) - 2])
        factors[:, ::3] = np.array([[1.0], [0.0], [0.0]])  # rows that ask for nothing
        repetition, frequency, presence = (torch.from_numpy(f).float() for f in factors)
        return {
            "logits": logits,
            "history": torch.from_numpy(history).int(),
            "num_prompt": torch.from_numpy(np.minimum(draw.integers(0, width + 1, num), lengths)).int(),
            "repetition": repetition,
            "frequency": frequency,
            "presence": presence,
        }

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        return {"y": bench.get(bench.bind(self.row)(*(bench.put(name, x) for name, x in inputs.items())))}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        logits, repetition, frequency, presence = (
            exact(inputs[name]) for name in ("logits", "repetition", "frequency", "presence")
        )
        y = sampling.penalize(
            logits,
            inputs["history"].long().numpy(),
            inputs["num_prompt"].long().numpy(),
            repetition,
            frequency,
            presence,
        )
        # One rounding each for the quotient, the product and the two differences.
        size = np.abs(np.where(np.isfinite(logits), logits, 0)) * np.maximum(repetition, 1 / repetition)[:, None]
        terms = size + inputs["history"].shape[1] * np.abs(frequency)[:, None] + np.abs(presence)[:, None]
        bound = np.where(y == logits, 0.0, 4 * W * terms + eta("float32"))
        return {"y": Expected(value=y, bound=bound, dtype="float32", rms=False)}


class AddBiasExam(LogitsExam):
    """A number added at a few ids."""

    row = "add_bias"

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        logits = self.logits(case, draw)
        num, size = logits.shape
        width = min(8, size)
        ids = np.stack([draw.permutation(size)[:width] for _ in range(num)])
        ids[draw.uniform(num, width) < 0.3] = -1
        bias = 200 * draw.uniform(num, width) - 100
        return {"logits": logits, "ids": torch.from_numpy(ids).int(), "bias": torch.from_numpy(bias).float()}

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        return {"y": bench.get(bench.bind(self.row)(*(bench.put(name, x) for name, x in inputs.items())))}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        y = exact(inputs["logits"])
        bound = np.zeros_like(y)
        ids, bias = inputs["ids"].long().numpy(), exact(inputs["bias"])
        for row, column in zip(*np.nonzero(ids >= 0), strict=True):
            token = ids[row, column]
            y[row, token] += bias[row, column]
            bound[row, token] = W * np.abs(y[row, token]) if np.isfinite(y[row, token]) else 0.0
        return {"y": Expected(value=y, bound=bound, dtype="float32", rms=False)}


class MinPExam(LogitsExam):
    """-inf for tokens that are unlikely beside the likeliest one."""

    row = "min_p"

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        logits = self.logits(case, draw)
        num = len(logits)
        temperature, least = 0.2 + 2 * draw.uniform(num), draw.uniform(num)
        temperature[::4], least[1::4] = 0, 0  # greedy rows, and rows that ask for nothing
        return {
            "logits": logits,
            "temperature": torch.from_numpy(temperature).float(),
            "least": stored(least, "float32"),
        }

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        return {"y": bench.get(bench.bind(self.row)(*(bench.put(name, x) for name, x in inputs.items())))}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        """What is so near the limit that float32 decides either way is taken as it came."""
        x, temperature, least = (exact(inputs[name]) for name in ("logits", "temperature", "least"))
        asks = (temperature > 0) & (least > 0)
        drop = temperature * np.log(np.where(asks, least, 1.0))
        top = x.max(-1)
        floor = np.where(asks, top + drop, -np.inf)
        slack = np.where(asks, EXP_ERROR * np.abs(drop) + 2 * W * (np.abs(top) + np.abs(drop)), 0.0)
        y = np.where(x < floor[:, None], -np.inf, x)
        with np.errstate(invalid="ignore"):
            near = np.abs(x - floor[:, None]) <= slack[:, None]
        got = exact(outputs["y"])
        if got.shape == y.shape:
            y = np.where(near & (np.isneginf(got) | (got == x)), got, y)
        return {"y": Expected(value=y, bound=np.zeros_like(y), dtype="float32", rms=False)}


class ApplyMaskExam(LogitsExam):
    """-inf where a bit is 0."""

    row = "apply_mask"

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        logits = self.logits(case, draw)
        num, size = logits.shape
        words = draw.integers(-(2**31), 2**31, num, -(-size // 32))
        words[::3] = -1
        words[1::3, 0] = 1 << 31 if size > 31 else 1  # bit 31 is the sign
        words = np.where(words >= 2**31, words - 2**32, words)
        return {"logits": logits, "mask": torch.from_numpy(words).int()}

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        return {"y": bench.get(bench.bind(self.row)(*(bench.put(name, x) for name, x in inputs.items())))}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        wanted = inputs["logits"].clone()
        bits = np.unpackbits(inputs["mask"].numpy().astype("<i4").view(np.uint8), axis=1, bitorder="little")
        wanted[torch.from_numpy(bits[:, : wanted.shape[1]] == 0)] = float("-inf")
        return {"y": Expected(bits=wanted)}


class LogprobsExam(LogitsExam):
    """Log-probability and rank of given tokens, and the k likeliest."""

    row = "logprobs_topk"

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        logits = self.logits(case, draw)
        num, size = logits.shape
        ids = draw.integers(0, size, num)
        ids[::4] = -1
        return {"logits": logits, "ids": torch.from_numpy(ids).int(), "k": draw.integer(0, min(size, 20) + 1)}

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        kernel = bench.bind(self.row, k=inputs["k"])
        found = kernel(bench.put("logits", inputs["logits"]), bench.put("ids", inputs["ids"]))
        names = ("logprob", "rank", "top_logprobs", "top_ids")
        return {name: bench.get(x) for name, x in zip(names, found, strict=True)}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        x, k = exact(inputs["logits"]), inputs["k"]
        ids = np.maximum(inputs["ids"].long().numpy(), 0)[:, None]
        logprobs = sampling.log_softmax(x)
        order = np.stack([sampling.ranking(row) for row in x])[:, :k] if k else np.zeros((len(x), 0), np.int64)
        rank = (x > np.take_along_axis(x, ids, 1)).sum(-1) + 1
        finite = np.where(np.isfinite(x), np.abs(x), 0).max(-1, keepdims=True)
        off = kappa(x.shape[1]) * W + EXP_ERROR + 2 * W * finite

        def near(values: np.ndarray) -> Expected:
            bound = np.where(np.isfinite(values), off + W * np.abs(np.where(np.isfinite(values), values, 0)), 0.0)
            return Expected(value=values, bound=bound, dtype="float32", rms=False)

        one = near(np.take_along_axis(logprobs, ids, 1))
        assert one.value is not None
        assert one.bound is not None
        return {
            "logprob": Expected(value=one.value[:, 0], bound=one.bound[:, 0], dtype="float32", rms=False),
            "rank": Expected(bits=torch.from_numpy(rank).int()),
            "top_logprobs": near(np.take_along_axis(logprobs, order, 1)),
            "top_ids": Expected(bits=torch.from_numpy(order).int()),
        }


class SpecVerifyExam(RowExam):
    """How many drafts agree, from the left, and the row of the id that counts last."""

    row = "spec_verify"

    def cases(self) -> Iterator[Case]:
        for num, drafts in ((1, 1), (40, 3), (7, 8), (5, 0)):
            yield Case.of(self.row, "normal", rows=num, drafts=drafts)
            yield Case.of(self.row, "agreeing", rows=num, drafts=drafts)

    def need(self, case: Case) -> Need:
        return Need()

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        num, drafts = case["rows"], case["drafts"]
        sampled = draw.integers(-1, 3, num, drafts + 1)  # few ids, so that many agree
        guesses = draw.integers(-1, 3, num, drafts)
        if case.family == "agreeing":
            guesses = sampled[:, :-1].copy()
            guesses[draw.uniform(num, drafts) < 0.2] = -1
        rows = np.arange(1, sampled.size + 1).reshape(sampled.shape)
        given = {"draft_ids": guesses, "sampled_ids": sampled, "rows": rows}
        return {name: torch.from_numpy(values).int() for name, values in given.items()}

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        accepted, row = bench.bind(self.row)(*(bench.put(name, x) for name, x in inputs.items()))
        return {"accepted": bench.get(accepted), "row": bench.get(row)}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        counts = []
        for guesses, sampled in zip(inputs["draft_ids"].tolist(), inputs["sampled_ids"].tolist(), strict=True):
            count = 0
            while count < len(guesses) and guesses[count] == sampled[count] >= 0:
                count += 1
            counts.append(count)
        rows = [row[count] for row, count in zip(inputs["rows"].tolist(), counts, strict=True)]
        return {
            "accepted": Expected(bits=torch.tensor(counts, dtype=torch.int32)),
            "row": Expected(bits=torch.tensor(rows, dtype=torch.int32)),
        }


EXAMS: tuple[RowExam, ...] = (
    PenalizeExam(),
    AddBiasExam(),
    MinPExam(),
    ApplyMaskExam(),
    LogprobsExam(),
    SpecVerifyExam(),
)
