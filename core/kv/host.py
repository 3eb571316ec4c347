"""Pages on the host, for sequences that were preempted: which are free. Owns no content; refuses nothing.

A sequence's pages are taken and given back together, so each group needs only a list of free ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class HostPool:
    """Pages 0 .. num_pages[g] - 1 of each KV group g."""

    def __init__(self, num_pages: Sequence[int]) -> None:
        self.num_pages = tuple(num_pages)
        self.free = [list(range(num - 1, -1, -1)) for num in num_pages]

    def num_used(self, group: int) -> int:
        return self.num_pages[group] - len(self.free[group])

    def take(self, nums: Sequence[int]) -> list[list[int]] | None:
        """So many pages of each group. None where some group has too few: then nothing was taken."""
        if any(num > len(free) for num, free in zip(nums, self.free, strict=True)):
            return None
        return [[free.pop() for _ in range(num)] for num, free in zip(nums, self.free, strict=True)]

    def give(self, pages: Sequence[Sequence[int]]) -> None:
        """Give back pages of each group."""
        for free, gone in zip(self.free, pages, strict=True):
            free.extend(gone)


@dataclass(frozen=True)
class HostCopy:
    """Entries of a sequence's first `num_tokens` tokens on the host.

    first   per group, the position of its first page there: what is before, no later token sees
    pages   per group, from there on
    """

    num_tokens: int
    first: list[int]
    pages: list[list[int]]
