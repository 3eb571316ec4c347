"""Pages of one KV group: who holds each, and which can be had.

    FREE -> FILLING -> VALID -> EVICTING -> FREE

A page is FILLING from its allocation until its content is complete and known by a key, then VALID. Page 0 is
the null page: never handed out. A page with references is in use; a VALID page without is cached: it can be
found again, and is evicted when pages run out. So free + cached + used = num_pages - 1, always.

The generation of a page grows when its content is given up, so a stale name for a page is recognised.

State is kept in numpy arrays because sequences take and give back thousands of pages at once.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from core.errors import CapacityError
from core.kv.evict import LeastRecentlyUsed

Pages = npt.NDArray[np.int32]


class PageState(IntEnum):
    FREE = 0
    FILLING = 1
    VALID = 2
    EVICTING = 3


# Plain numbers: an enum member costs more than the numpy access it goes into.
FREE, FILLING, VALID, EVICTING = (int(state) for state in PageState)


class PagePool:
    """Pages 1 .. num_pages - 1.

    `on_evict(page)` is called while an evicted page is EVICTING, before its content is given up.
    """

    def __init__(self, num_pages: int, on_evict: Callable[[int], None]) -> None:
        assert num_pages >= 2, num_pages
        self.num_pages = num_pages
        self.state = np.zeros(num_pages, np.uint8)
        self.refs = np.zeros(num_pages, np.int32)
        self.generation = np.zeros(num_pages, np.int64)
        self.last_used = np.zeros(num_pages, np.int64)
        self.depth = np.zeros(num_pages, np.int32)
        self.num_cached = 0
        self._free = list(range(num_pages - 1, 0, -1))
        self._tick = 0
        self._order = LeastRecentlyUsed(self)
        self._on_evict = on_evict

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_available(self) -> int:
        """Pages that `allocate` can hand out now."""
        return len(self._free) + self.num_cached

    @property
    def num_used(self) -> int:
        return self.num_pages - 1 - self.num_available

    def cached_pages(self) -> Pages:
        """VALID pages without references."""
        return np.flatnonzero((self.state == VALID) & (self.refs == 0)).astype(np.int32)

    def allocate(self, num: int) -> list[int]:
        """Take `num` pages, each FILLING with one reference; evicts cached ones where none are free.

        Raises: CapacityError when fewer are available; then nothing was taken.
        """
        if num > self.num_available:
            raise CapacityError(
                f"{num} KV pages were asked for and {self.num_available} of {self.num_pages} can be had"
            )
        while len(self._free) < num:
            self._evict(self._order.pop())
        cut = len(self._free) - num
        pages = self._free[cut:]
        del self._free[cut:]
        if num == 1:  # a decoding sequence's next page: indexing by a list would cost more than all the rest
            self.state[pages[0]], self.refs[pages[0]] = FILLING, 1
        else:
            self.state[pages], self.refs[pages] = FILLING, 1
        return pages

    def commit(self, page: int, depth: int) -> None:
        """FILLING -> VALID: the content is complete, `depth` pages after the start of its sequence."""
        assert self.state[page] == FILLING, f"page {page} is in state {self.state[page]}"
        self.state[page] = VALID
        self.depth[page] = depth

    def pin(self, pages: Pages) -> None:
        """Add one reference to each of these VALID pages; no page stands twice among them."""
        assert bool((self.state[pages] == VALID).all()), "only content that is complete can be shared"
        self.num_cached -= int((self.refs[pages] == 0).sum())
        self.refs[pages] += 1

    def release(self, pages: Pages) -> None:
        """Give up one reference to each; no page stands twice among them.

        Pages without any left become cached when VALID, free when not.
        """
        self._tick += 1
        assert bool((self.refs[pages] > 0).all()), "a page was released more often than it was taken"
        self.refs[pages] -= 1
        self.last_used[pages] = self._tick
        unheld = pages[self.refs[pages] == 0]
        valid = self.state[unheld] == VALID
        self.num_cached += int(valid.sum())
        unfinished = unheld[~valid]
        self.generation[unfinished] += 1
        self.state[unfinished] = FREE
        self._free.extend(unfinished.tolist())

    def _evict(self, page: int) -> None:
        self.state[page] = EVICTING
        self._on_evict(page)
        self.generation[page] += 1
        self.state[page] = FREE
        self.num_cached -= 1
        self._free.append(page)
