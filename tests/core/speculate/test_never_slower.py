"""The policy as a whole: on machines of many kinds, with drafts of many kinds, none is made slower by over 5 %.

What is simulated is a machine alone: what a step of so many tokens takes, by how much that varies, and which drafts are
right. `Drafting` is driven as the scheduler does. What is judged is the mean time of the steps that it chose, so chance
is in what it sees, and not in what it is told by.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest

from core.speculate.drafting import Drafting
from core.speculate.lengths import Lengths

LENGTH = 128  # tokens of a sequence
FORETELLING = 0.2  # of the time of a step
VARIES, DRIFTS, LASTS = 0.1, 0.4, 0.93  # logarithms of times: each for itself, all for a while, and how long that is

MACHINES: dict[str, Callable[[int], float]] = {
    "flat": lambda num: 1 + 0.01 * num,
    "tiles": lambda num: 1 + 0.4 * -(-num // 16),
    "steep": lambda num: 1 + 0.1 * num,
    "linear": lambda num: 0.2 + 0.3 * num,
}
CHANCES = {"never": [0.0], "seldom": [0.2], "half": [0.5], "mostly": [0.9], "mixed": [0.05, 0.3, 0.6, 0.95]}


class Often:
    """Has drafts three times of five."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def propose(self, token_ids: Sequence[int], num: int) -> list[int]:
        return [1] * num if self._rng.random() < 0.6 else []


class Machine:
    """Takes as long as its kind says, but for what disturbs it."""

    def __init__(self, took_s: Callable[[int], float], rng: random.Random) -> None:
        self._took_s, self._rng, self._level = took_s, rng, 0.0

    def step(self, num_tokens: int, foretells: bool) -> tuple[float, float, float]:
        """Seconds in all, seconds of draft layers, and what the step takes in the mean."""
        self._level = LASTS * self._level + self._rng.gauss(0, DRIFTS * math.sqrt(1 - LASTS**2))
        mean_s = self._took_s(num_tokens)
        took_s = mean_s * math.exp(self._level + self._rng.gauss(0, VARIES))
        part_s = FORETELLING * took_s if foretells else 0.0
        return took_s + part_s, part_s, mean_s * (1 + FORETELLING * foretells)


def gain(machine: str, chances: Sequence[float], batch_size: int, *, on_host: bool, num_steps: int) -> float:
    """Tokens a second over those without drafts, in the mean."""
    rng = random.Random(batch_size)
    drafting = Drafting((lambda: Often(rng)) if on_host else None, 8 if on_host else 3, Lengths())
    at_work, seqs = Machine(MACHINES[machine], rng), []
    num_tokens, took_s = 0, 0.0
    for _ in range(num_steps):
        while len(seqs) < batch_size:
            drafts = drafting.open([])
            drafting.follow(drafts, batch_size)
            seqs.append((drafts, rng.choice(chances), [0]))
        proposed = drafting.propose([drafts for drafts, _, _ in seqs], batch_size, batch_size)
        foretells, size = any(drafts.followed for drafts, _, _ in seqs), batch_size + sum(map(len, proposed))
        seconds, foretelling_s, mean_s = at_work.step(size, foretells)
        num_emitted = 0
        for (drafts, chance, drawn), ids in zip(seqs, proposed, strict=True):
            num_right = next((place for place in range(len(ids)) if rng.random() >= chance), len(ids))
            drafting.learn(drafts, len(ids), num_right)
            drawn[0] += 1 + num_right
            num_emitted += 1 + num_right
            if drafts.followed:
                drafts.hear([1, 1, 1])
        drafting.learn_time(size, seconds, foretelling_s)
        if foretells:
            drafting.learn_gain(batch_size, num_emitted)
        num_tokens, took_s = num_tokens + num_emitted, took_s + mean_s
        seqs = [seq for seq in seqs if seq[2][0] < LENGTH]
    return num_tokens * MACHINES[machine](batch_size) / batch_size / took_s


@pytest.mark.parametrize("on_host", [True, False], ids=["text", "layers"])
@pytest.mark.parametrize("chances", CHANCES)
@pytest.mark.parametrize("machine", MACHINES)
def test_never_slower_by_over_5_percent(machine: str, chances: str, on_host: bool) -> None:
    for batch_size, num_steps in ((1, 3000), (8, 1200), (64, 400)):
        found = gain(machine, CHANCES[chances], batch_size, on_host=on_host, num_steps=num_steps)
        assert found > 0.95, f"batch size {batch_size}"


@pytest.mark.parametrize(("on_host", "batch_size", "least"), [(True, 1, 3.0), (True, 8, 1.8), (False, 1, 2.3)])
def test_good_drafts_are_used(on_host: bool, batch_size: int, least: float) -> None:
    assert gain("tiles", CHANCES["mostly"], batch_size, on_host=on_host, num_steps=1500) > least
