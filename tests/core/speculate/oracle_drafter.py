"""A drafter that is told the right answers, and spoils some of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from core.speculate.drafting import Drafting


class OracleDrafter:
    """Proposes 0 to `num` of the ids that follow, each of them wrong with probability `spoil`."""

    def __init__(self, answer: Callable[[Sequence[int], int], list[int]], rng: random.Random, spoil: float) -> None:
        self._answer, self._rng, self._spoil = answer, rng, spoil

    def propose(self, token_ids: Sequence[int], num: int) -> list[int]:
        ids = self._answer(token_ids, num if self._rng.random() < 0.5 else self._rng.randrange(num + 1))
        return [i ^ 1 if self._rng.random() < self._spoil else i for i in ids]


def oracle(
    answer: Callable[[Sequence[int], int], list[int]], max_drafts: int, seed: int = 0, spoil: float = 0.3
) -> Drafting:
    """Drafting with it: all that it proposes is computed. `answer(ids, num)`: ids that follow, at most `num`."""
    rng = random.Random(seed)
    return Drafting(lambda: OracleDrafter(answer, rng, spoil), max_drafts)


def among(texts: Sequence[Sequence[int]]) -> Callable[[Sequence[int], int], list[int]]:
    """Answers of whichever of these texts begins with the ids so far."""

    def answer(token_ids: Sequence[int], num: int) -> list[int]:
        known = list(token_ids)
        for text in texts:
            if list(text[: len(known)]) == known:
                return list(text[len(known) : len(known) + num])
        return []

    return answer
