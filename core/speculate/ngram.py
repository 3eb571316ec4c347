"""Drafts from the text itself: what followed when the last ids were last seen.

Source: A. Saxena, "Prompt Lookup Decoding", 2023, https://github.com/apoorvumang/prompt-lookup-decoding.
"""

from __future__ import annotations

from collections.abc import Sequence


class NgramDrafter:
    """Looks for the last `most` ids in what came before them, then for one less, down to `least`.

    An index of every such run of ids grows with the sequence: a token costs most - least + 1 insertions, once.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self._followed: dict[tuple[int, ...], int] = {}  # a run of ids -> position of what followed it last
        self._num_indexed = 0  # positions at which runs end that were put in

    def propose(self, token_ids: Sequence[int], num: int) -> list[int]:
        """Where what followed is not long enough yet, it is taken to go on as a repetition."""
        self._index(token_ids)
        for size in range(min(self._most, len(token_ids) - 1), self._least - 1, -1):
            start = self._followed.get(tuple(token_ids[-size:]))
            if start is not None:
                period = len(token_ids) - start
                return [token_ids[start + i % period] for i in range(num)]
        return []

    def _index(self, token_ids: Sequence[int]) -> None:
        for end in range(self._num_indexed + 1, len(token_ids)):
            for size in range(self._least, min(self._most, end) + 1):
                self._followed[tuple(token_ids[end - size : end])] = end
        self._num_indexed = max(0, len(token_ids) - 1)
