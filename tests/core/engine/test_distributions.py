"""What an engine draws follows the distribution that a request asks for: chi-square against float64, by definition.

The logits are transformers', in float64. Each setting is drawn with thousands of seeds in batches of hundreds, and
judged at odds of one in a million; what may not be drawn never is. A slightly wrong oracle is refused by the same
draws, so the judge can tell.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from core.config import EngineConfig
from core.engine.engine import Engine
from core.engine.front import Front
from core.request import SamplingParams
from core.speculate.drafting import Drafting
from tests.core.kernels.reference.draws import chi_square_limit, oracle

NUM_DRAWS = 4096
LEAST_EXPECTED = 5  # draws in a bin: fewer are not near enough to normal
PROMPT = [5, 90, 91, 90, 17, 5, 5, 203, 204, 90, 91] * 3
ALLOWED = (5, 17, 33, 90, 91, 150, 203, 260, 301, 383)
Outputs = tuple[int, ...]


@dataclass(frozen=True)
class Asked:
    """Sampling parameters, as the oracle reads them."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    allowed_token_ids: Outputs = ()
    max_tokens: int = 1

    def shaped(self, logits: list[float], outputs: Outputs) -> list[float]:
        """Logits after everything that comes before temperature, top_k and top_p; -inf for what is out."""
        shaped = []
        for i, logit in enumerate(logits):
            x = logit + self.logit_bias.get(i, 0.0)
            if i in PROMPT or i in outputs:
                x = x / self.repetition_penalty if x > 0 else x * self.repetition_penalty
            x -= self.frequency_penalty * outputs.count(i) + self.presence_penalty * (i in outputs)
            shaped.append(x if not self.allowed_token_ids or i in self.allowed_token_ids else -math.inf)
        top = max(shaped)
        least = self.min_p
        return [x if math.exp((x - top) / self.temperature) >= least else -math.inf for x in shaped]

    def expected(self, logits_after: Callable[[Outputs], list[float]]) -> dict[Outputs, float]:
        """The probability of every output that may be drawn."""
        found: dict[Outputs, float] = {(): 1.0}
        for _ in range(self.max_tokens):
            longer = {}
            for outputs, p in found.items():
                row = self.shaped(logits_after(outputs), outputs)
                odds = oracle(row, self.temperature, self.top_k, self.top_p)
                longer |= {(*outputs, i): p * q for i, q in enumerate(odds) if q > 0}
            found = longer
        return found


ASKED = {
    "plain": Asked(),
    "cold": Asked(temperature=0.6),
    "hot": Asked(temperature=1.9),
    "peaked": Asked(logit_bias={33: 8.0}),
    "top_k": Asked(top_k=7),
    "top_p": Asked(top_p=0.7),
    "min_p": Asked(min_p=0.08),
    "all_three": Asked(temperature=1.4, top_k=20, top_p=0.9, min_p=0.05),
    "bias": Asked(logit_bias={5: 3.0, 33: 6.0, 90: -100.0, 301: 5.0}),
    "repetition": Asked(repetition_penalty=1.6, logit_bias={5: 9.0, 90: 9.5, 40: 4.0, 17: -9.0}),
    "allowed": Asked(allowed_token_ids=ALLOWED),
    "penalties": Asked(
        allowed_token_ids=ALLOWED,
        logit_bias={17: 1.0, 260: -0.5},
        repetition_penalty=1.2,
        frequency_penalty=0.9,
        presence_penalty=0.6,
        top_k=8,
        max_tokens=2,
    ),
}

# Some ids are likely, so that drafts come true now and then, and at each place.
LIKELY = {"allowed_token_ids": ALLOWED, "logit_bias": {33: 2.5, 90: 2.0}, "max_tokens": 3}
DRAFTED = {
    "drafted, cold": Asked(temperature=0.6, **LIKELY),
    "drafted, top_p": Asked(temperature=1.3, top_p=0.8, **LIKELY),
    "drafted, min_p": Asked(temperature=1.9, min_p=0.1, **LIKELY),
}
NUM_DRAFTED = 100_000


class Drawn:
    """An engine, and the exact model."""

    def __init__(self, model: Path, num_draws: int = NUM_DRAWS, speculative: str | None = None) -> None:
        from transformers import AutoModelForCausalLM

        self._exact = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64).eval()
        self._num_draws = num_draws
        config = EngineConfig(
            model=str(model),
            device="cpu",
            dtype="float32",
            num_kv_blocks=800,
            max_num_seqs=160,
            speculative=speculative,
        )
        self.engine = Engine(config)
        self._front = Front(self.engine.info(), [])
        self.logits_after = cache(self._logits_after)
        self.counts = cache(self._counts)

    @torch.inference_mode()
    def _logits_after(self, outputs: Outputs) -> list[float]:
        found: list[float] = self._exact(torch.tensor([PROMPT + list(outputs)])).logits[0, -1].tolist()
        return found

    def _counts(self, name: str) -> Counter[Outputs]:
        """How often each output was drawn, over as many seeds as draws."""
        params: dict[str, Any] = vars({**ASKED, **DRAFTED}[name])
        one = self._front.request(PROMPT, SamplingParams(**params), request_id="")
        ids: dict[str, Outputs] = {}
        for seed in range(self._num_draws):
            self.engine.add(msgspec.structs.replace(one, request_id=str(seed), seed=seed))
            ids[str(seed)] = ()
        while self.engine.busy:
            for output in self.engine.step():
                assert output.error is None
                ids[output.request_id] += tuple(output.new_ids)
        return Counter(ids.values())

    def refusal(self, name: str, asked: Asked) -> str | None:
        """Why the draws asked for as `name` do not follow `asked`, or None."""
        return refusal(self.counts(name), asked.expected(self.logits_after))


def refusal(counts: Counter[Outputs], expected: dict[Outputs, float]) -> str | None:
    """By chi-square, in many bins, which see any single output, and in few, which see a slope over all of them."""
    if outside := set(counts) - set(expected):
        return f"outside of what may be drawn: {sorted(outside)}"
    for least in (LEAST_EXPECTED, counts.total() / 24):
        bins = binned(counts, expected, least)
        statistic = sum((count - mean) ** 2 / mean for count, mean in bins)
        limit = chi_square_limit(len(bins) - 1)
        if statistic >= limit:
            return f"chi-square is {statistic:.1f} with {len(bins)} bins: over {limit:.1f}"
    return None


def binned(counts: Counter[Outputs], expected: dict[Outputs, float], least: float) -> list[tuple[int, float]]:
    """(draws, draws expected) of bins that expect `least` draws or more, each of outputs about as likely."""
    bins: list[tuple[int, float]] = []
    count, mean = 0, 0.0
    for outputs, p in sorted(expected.items(), key=lambda item: -item[1]):
        count, mean = count + counts[outputs], mean + p * counts.total()
        if mean >= least:
            bins.append((count, mean))
            count, mean = 0, 0.0
    bins[-1] = (bins[-1][0] + count, bins[-1][1] + mean)
    return bins


@pytest.fixture(scope="module")
def drawn(tiny_llama_dir: Path) -> Iterator[Drawn]:
    made = Drawn(tiny_llama_dir)
    yield made
    made.engine.close()


@pytest.mark.parametrize("name", ASKED)
def test_draws_follow_what_was_asked(drawn: Drawn, name: str) -> None:
    assert drawn.refusal(name, ASKED[name]) is None
    assert len(drawn.counts(name)) >= 4


WRONG = [
    ("peaked", {"temperature": 1.05}),
    ("peaked", {"temperature": 0.95}),
    ("cold", {"temperature": 0.7}),
    ("top_k", {"top_k": 8}),
    ("top_k", {"top_k": 6}),
    ("top_p", {"top_p": 0.75}),
    ("min_p", {"min_p": 0.07}),
    ("all_three", {"top_p": 0.95}),
    ("all_three", {"min_p": 0.06, "top_k": 16}),
    ("bias", {"logit_bias": {5: 3.0, 33: 5.5, 90: -100.0, 301: 5.0}}),
    ("repetition", {"repetition_penalty": 1.5}),
    ("allowed", {"allowed_token_ids": ALLOWED[1:]}),
    ("penalties", {"repetition_penalty": 1.0}),
    ("penalties", {"frequency_penalty": 0.6}),
    ("penalties", {"presence_penalty": 0.3}),
]


@pytest.mark.parametrize(("name", "wrong"), WRONG, ids=lambda value: str(value))
def test_a_slightly_wrong_oracle_is_refused(drawn: Drawn, name: str, wrong: dict[str, Any]) -> None:
    asked = Asked(**{**vars(ASKED[name]), **wrong})
    assert drawn.refusal(name, asked) is not None


class Guesser:
    """Any of what is likely, in any order."""

    def __init__(self) -> None:
        self._random = random.Random(0)

    def propose(self, token_ids: list[int], num: int) -> list[int]:
        return self._random.choices((33, 90, 150), k=num)


@pytest.fixture(scope="module")
def drafted(tiny_llama_dir: Path) -> Iterator[Drawn]:
    made = Drawn(tiny_llama_dir, NUM_DRAFTED, "ngram:2")
    made.engine.scheduler.drafting = Drafting(Guesser, 2)
    yield made
    made.engine.close()


@pytest.mark.heavy
@pytest.mark.parametrize("name", DRAFTED)
def test_drafts_do_not_change_the_distribution(drafted: Drawn, name: str) -> None:
    """All that may be drawn in three places, and how often."""
    assert drafted.refusal(name, DRAFTED[name]) is None
    seen = drafted.engine.inspect()
    assert min(seen.num_accepted_at) > 200
    assert seen.num_accepted_tokens < 0.8 * seen.num_draft_tokens
    warmer = {"temperature": DRAFTED[name].temperature * 1.1}
    assert drafted.refusal(name, Asked(**{**vars(DRAFTED[name]), **warmer})) is not None
