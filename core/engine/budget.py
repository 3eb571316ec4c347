"""Free text before a form, held to a number of ids: then its end is forced.

The grammar itself says what the end is and what comes after it; here ids are counted, as long as the text is free. A
character that the text stands in the middle of is finished first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from core.engine.grammar import Matcher, Words


class BudgetMatcher:
    """A matcher (`core.engine.grammar.Matcher`) of a prelude and what follows it.

    begin, end   of the prelude, as bytes
    end_ids      ids that spell the end
    max_ids      after `begin`
    token_bytes  what an id adds to the text
    """

    def __init__(
        self,
        inner: Matcher,
        begin: bytes,
        end: bytes,
        end_ids: Sequence[int],
        max_ids: int,
        token_bytes: Callable[[int], bytes],
    ) -> None:
        self._inner = inner
        self._begin, self._end = begin, end
        self._end_ids = end_ids
        self._max_ids = max_ids
        self._token_bytes = token_bytes
        self._text = bytearray()
        self._sizes: list[int] = []  # of the text that each id adds
        self._free_at: int | None = None if begin else 0  # how many ids there were before the text was free
        self._forced_at: int | None = None  # and before its end was forced

    @property
    def fault(self) -> str | None:
        return self._inner.fault

    @property
    def is_done(self) -> bool:
        return self._inner.is_done

    @property
    def is_complete(self) -> bool:
        return self._inner.is_complete

    def fill(self, words: Words) -> None:
        self._inner.fill(words)
        if self.fault is not None or not self._is_spent():
            return
        at = 0 if self._forced_at is None else len(self._sizes) - self._forced_at
        forced = self._end_ids[at]
        bits = words.view(np.uint32)
        bit = np.uint32(1 << forced % 32)
        if bits[forced // 32] & bit:
            self._forced_at = len(self._sizes) - at
            bits[:] = 0
            bits[forced // 32] = bit

    def accept(self, ids: Sequence[int]) -> int:
        taken = self._inner.accept(ids)
        for token_id in ids[:taken]:
            piece = self._token_bytes(token_id)
            self._text += piece
            self._sizes.append(len(piece))
            if self._free_at is None and len(self._text) >= len(self._begin):
                self._free_at = len(self._sizes)
        return taken

    def rollback(self, num_ids: int) -> None:
        self._inner.rollback(num_ids)
        left = len(self._sizes) - num_ids
        del self._text[len(self._text) - sum(self._sizes[left:]) :]
        del self._sizes[left:]
        if self._begin and self._free_at is not None and left < self._free_at:
            self._free_at = None
        if self._forced_at is not None and left < self._forced_at:
            self._forced_at = None

    def _is_spent(self) -> bool:
        """Whether the text is free, and has as many ids as it may."""
        if self._free_at is None or len(self._sizes) - self._free_at < self._max_ids:
            return False
        return self._text.find(self._end, len(self._begin)) < 0
