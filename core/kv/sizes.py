"""How KV pages are shared out among groups. Arithmetic only: `core.config` decides how many there are.

The rule: every group has the same number of pages, but a group with a window no more than twice what the running
sequences can hold in it: what is over keeps prefixes findable. One sequence of the greatest length always fits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from core.kv.groups import KVGroup


class PageShares:
    """Pages per group, for a number of pages that a group which keeps everything would get. Page 0 counts too.

    page_bytes   of one page, per group
    max_len      tokens in a sequence, at most
    max_seqs     sequences that run at a time, at most
    step_tokens  tokens in flight, at most

    useful   more pages would never be filled
    enough   per group: what one sequence needs
    """

    def __init__(
        self,
        groups: Sequence[KVGroup],
        page_bytes: Sequence[int],
        page_tokens: int,
        *,
        max_len: int,
        max_seqs: int,
        step_tokens: int,
    ) -> None:
        longest = -(-max_len // page_tokens)
        self.useful = max_seqs * longest + 1
        self.enough = []
        self._page_bytes = tuple(page_bytes)
        self._caps = []
        for group in groups:
            one, all_of_them = (group.pages_held(page_tokens, step_tokens, n) for n in (1, max_seqs))
            self.enough.append(longest + 1 if one is None else min(longest, 2 * one) + 1)
            self._caps.append(self.useful if all_of_them is None else min(self.useful, 2 * all_of_them + 1))

    def split(self, num: int) -> tuple[int, ...]:
        """Pages of each group."""
        return tuple(min(num, cap) for cap in self._caps)

    def num_bytes(self, num: int) -> int:
        """Of all groups together."""
        return sum(pages * size for pages, size in zip(self.split(num), self._page_bytes, strict=True))

    def within(self, num_bytes: int) -> int:
        """The most useful pages that `num_bytes` hold."""
        return bisect_right(range(self.useful + 1), num_bytes, key=self.num_bytes) - 1
