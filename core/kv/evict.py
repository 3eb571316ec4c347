"""Which cached page goes first: the least recently used; of equals, the deepest.

Design. A sequence releases all its pages at one tick, so within a sequence the last pages go first, and a page goes
only after all pages that continue it. The prefix index rests on that: when a page is found, everything before it is
there too.

Ordering every page at every release would cost the scheduler far more than eviction itself. Instead the pool is
scanned when victims are needed, and the oldest sixteenth is kept as a queue. A page used since then has a newer tick
than any in the queue, so skipping it keeps the order exact; pages that became evictable since are newer still.

The brute-force twin (tests/core/kv) sorts everything at each eviction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from core.kv.pool import PagePool

_MIN_QUEUE = 64
_DEPTH_BITS = 24  # a page depth fits: 2**24 pages of 16 tokens are 268M tokens


class LeastRecentlyUsed:
    """Eviction order over the VALID pages of `pool` without references."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._queue: list[tuple[int, int, int]] = []  # (page, generation, last_used), next victim last

    def pop(self) -> int:
        """The next victim. There must be one."""
        pool = self._pool
        while True:
            if not self._queue:
                self._scan()
            page, generation, used = self._queue.pop()
            if pool.refs[page] == 0 and pool.generation[page] == generation and pool.last_used[page] == used:
                return page

    def _scan(self) -> None:
        pool = self._pool
        pages = pool.cached_pages()
        assert len(pages) == pool.num_cached > 0, "eviction asked for where nothing is cached"
        order = (pool.last_used[pages] << _DEPTH_BITS) - pool.depth[pages]
        size = max(_MIN_QUEUE, len(pages) // 16)
        if size < len(pages):
            oldest = np.argpartition(order, size)[:size]
            pages, order = pages[oldest], order[oldest]
        pages = pages[np.argsort(-order, kind="stable")]
        self._queue = list(
            zip(pages.tolist(), pool.generation[pages].tolist(), pool.last_used[pages].tolist(), strict=True)
        )
