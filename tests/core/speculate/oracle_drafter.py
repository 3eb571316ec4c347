"""A drafter that is told the right answers, and spoils some of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from core.speculate.drafting import Drafting


class OracleDrafter:
    """Proposes ids that follow, each of them wrong with probability `spoil`; with `fewer`, perhaps not all."""

    def __init__(
        self, answer: Callable[[Sequence[int], int], list[int]], rng: random.Random, spoil: float, fewer: float
    ) -> None:
        self._answer, self._rng, self._spoil, self._fewer = answer, rng, spoil, fewer

    def propose(self, token_ids: Sequence[int], num: int) -> list[int]:
        ids = self._answer(token_ids, self._rng.randrange(num + 1) if self._rng.random() < self._fewer else num)
        return [i ^ 1 if self._rng.random() < self._spoil else i for i in ids]


def oracle(
    answer: Callable[[Sequence[int], int], list[int]],
    max_drafts: int,
    seed: int = 0,
    spoil: float = 0.3,
    fewer: float = 0.5,
) -> Drafting:
    """Drafting with it: all that it proposes is computed. `answer(ids, num)`: ids that follow, at most `num`."""
    rng = random.Random(seed)
    return Drafting(lambda: OracleDrafter(answer, rng, spoil, fewer), max_drafts)


def among(texts: Sequence[Sequence[int]]) -> Callable[[Sequence[int], int], list[int]]:
    """Answers of whichever of these texts begins with the ids so far."""

    def answer(token_ids: Sequence[int], num: int) -> list[int]:
        known = list(token_ids)
        for text in texts:
            if list(text[: len(known)]) == known:
                return list(text[len(known) : len(known) + num])
        return []

    return answer
