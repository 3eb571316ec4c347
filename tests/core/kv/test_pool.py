"""The page pool and its eviction order against a twin of plain lists that sorts everything at each eviction."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from core.errors import CapacityError
from core.kv.evict import LeastRecentlyUsed
from core.kv.pool import PagePool, PageState

SIZES = [2, 3, 9, 30, 150]
operations = 0


class Twin:
    """What a pool must do, one page at a time. Pages by number; `age` orders releases."""

    def __init__(self, num_pages: int) -> None:
        self.free = set(range(1, num_pages))
        self.filling: set[int] = set()
        self.valid: dict[int, int] = {}  # page -> depth
        self.holders: dict[int, int] = {}  # page -> references, where there are any
        self.age: dict[int, int] = {}
        self.lives = dict.fromkeys(range(num_pages), 0)
        self.now = 0

    def order(self, page: int) -> tuple[int, int]:
        return self.age[page], -self.valid[page]

    def cached(self) -> list[int]:
        """In the order of eviction."""
        return sorted((p for p in self.valid if p not in self.holders), key=self.order)

    def evict(self, victims: list[int]) -> None:
        """Give up these pages, after checking that they are the right ones. Which of equals goes is left open."""
        expected = self.cached()[: len(victims)]
        assert [self.order(p) for p in victims] == [self.order(p) for p in expected]
        for page in victims:
            assert page not in self.holders, "a pinned page was evicted"
            del self.valid[page]
            self.lives[page] += 1
            self.free.add(page)

    def take(self, pages: list[int]) -> None:
        assert len(set(pages)) == len(pages)
        assert set(pages) <= self.free, "handed out while in use"
        for page in pages:
            self.free.remove(page)
            self.filling.add(page)
            self.holders[page] = 1

    def pin(self, pages: list[int]) -> None:
        for page in pages:
            self.holders[page] = self.holders.get(page, 0) + 1

    def release(self, pages: list[int]) -> None:
        self.now += 1
        for page in pages:
            self.age[page] = self.now
            self.holders[page] -= 1
            if self.holders[page] == 0:
                del self.holders[page]
                if page in self.filling:
                    self.filling.remove(page)
                    self.lives[page] += 1
                    self.free.add(page)


class PoolMachine(RuleBasedStateMachine):
    @initialize(num_pages=st.sampled_from(SIZES), data=st.integers(0, 2**32))
    def start(self, num_pages: int, data: int) -> None:
        self.rng = random.Random(data)
        self.evicted: list[int] = []
        self.pool = PagePool(num_pages, on_evict=self.on_evict)
        self.twin = Twin(num_pages)

    def on_evict(self, page: int) -> None:
        assert self.pool.state[page] == PageState.EVICTING
        self.evicted.append(page)

    def some(self, pages: Any) -> list[int]:
        pages = sorted(pages)
        return self.rng.sample(pages, self.rng.randint(0, len(pages)))

    @rule(share=st.floats(0, 1))
    def allocate(self, share: float) -> None:
        num = round(share**2 * self.pool.num_available)
        wanted = max(0, num - len(self.twin.free))
        pages = self.pool.allocate(num)
        assert len(self.evicted) == wanted, "evicts only what is needed"
        self.twin.evict(self.evicted)
        self.evicted = []
        assert len(pages) == num
        self.twin.take(pages)

    @rule(more=st.integers(1, 5))
    def ask_too_much(self, more: int) -> None:
        available = self.pool.num_available
        wanted = rf"{available + more} KV pages were asked for and {available} of {self.pool.num_pages} can be had"
        with pytest.raises(CapacityError, match=wanted):
            self.pool.allocate(available + more)
        assert not self.evicted

    @precondition(lambda self: self.twin.filling)
    @rule(share=st.floats(0, 1))
    def commit(self, share: float) -> None:
        pages = sorted(self.twin.filling)
        for page in self.rng.sample(pages, max(1, round(share * len(pages)))):
            depth = self.rng.randrange(6)
            self.pool.commit(page, depth)
            self.twin.filling.remove(page)
            self.twin.valid[page] = depth

    @rule()
    def pin(self) -> None:
        pages = self.some(self.twin.valid)[:20]
        self.pool.pin(np.array(pages, np.int32))
        self.twin.pin(pages)

    @rule()
    def release(self) -> None:
        pages = self.some(self.twin.holders)
        self.pool.release(np.array(pages, np.int32))
        self.twin.release(pages)

    @invariant()
    def agrees(self) -> None:
        global operations
        operations += 1
        pool, twin = self.pool, self.twin
        states, refs, lives = pool.state.tolist(), pool.refs.tolist(), pool.generation.tolist()
        for page in range(1, pool.num_pages):
            wanted = PageState.FREE
            if page in twin.filling:
                wanted = PageState.FILLING
            elif page in twin.valid:
                wanted = PageState.VALID
            assert states[page] == wanted, page
            assert refs[page] == twin.holders.get(page, 0), page
            assert lives[page] == twin.lives[page], page
        assert pool.refs[0] == 0
        assert pool.state[0] == PageState.FREE
        assert pool.num_free == len(twin.free)
        assert pool.num_cached == len(twin.cached())
        assert pool.num_used == len(twin.holders)
        assert pool.num_free + pool.num_cached + pool.num_used == pool.num_pages - 1
        assert set(pool.cached_pages().tolist()) == set(twin.cached())


def test_random_operations() -> None:
    run_state_machine_as_test(PoolMachine, settings=settings(max_examples=260, stateful_step_count=50))
    assert operations >= 10_000


def test_eviction_order_of_many_pages() -> None:
    """More pages than the eviction queue holds, used again between evictions."""
    rng = random.Random(3)
    evicted: list[int] = []
    pool, twin = PagePool(2500, evicted.append), Twin(2500)
    twin.take(pool.allocate(2499))
    for page in range(1, 2500):
        pool.commit(page, page % 11)
        twin.filling.remove(page)
        twin.valid[page] = page % 11
    left = rng.sample(range(1, 2500), 2499)
    while left:
        part, left = left[:40], left[40:]
        pool.release(np.array(part, np.int32))
        twin.release(part)
    for _ in range(60):
        num = rng.randrange(60)
        pages = pool.allocate(num)
        assert len(evicted) == num
        twin.evict(evicted)
        twin.take(pages)
        evicted.clear()
        again = rng.sample(twin.cached(), min(4, len(twin.cached())))
        for change in (pool.pin, pool.release):
            change(np.array(again, np.int32))
        twin.pin(again)
        twin.release(again)
        pool.release(np.array(pages, np.int32))
        twin.release(pages)
        # Pages that were not finished are free at once; fill them again, so that the next round must evict.
        refilled = pool.allocate(pool.num_free)
        twin.take(refilled)
        for page in refilled:
            pool.commit(page, 0)
            twin.filling.remove(page)
            twin.valid[page] = 0
        pool.release(np.array(refilled, np.int32))
        twin.release(refilled)


@pytest.mark.parametrize("num", [1, 63, 64, 65, 1024, 1040])
def test_the_first_victim_of_so_many(num: int) -> None:
    """Around the least length of the eviction queue, and a sixteenth of all."""
    evicted: list[int] = []
    pool = PagePool(num + 1, evicted.append)
    pages = pool.allocate(num)
    for depth, page in enumerate(pages):
        pool.commit(page, depth)
    pool.release(np.array(pages, np.int32))
    pool.allocate(1)
    assert evicted == pages[-1:]


def test_a_page_is_given_back_once() -> None:
    pool = PagePool(4, on_evict=lambda page: None)
    pages = np.array(pool.allocate(2), np.int32)
    pool.release(pages)
    with pytest.raises(AssertionError, match=r"^a page was released more often than it was taken"):
        pool.release(pages)


def test_only_complete_pages_are_shared() -> None:
    pool = PagePool(4, on_evict=lambda page: None)
    pages = np.array(pool.allocate(1), np.int32)
    with pytest.raises(AssertionError, match=r"^only content that is complete can be shared"):
        pool.pin(pages)
    pool.commit(int(pages[0]), 0)
    with pytest.raises(AssertionError, match=r"^page 1 is in state 2"):
        pool.commit(int(pages[0]), 0)


def test_nothing_is_evicted_where_nothing_is_cached() -> None:
    pool = PagePool(4, on_evict=lambda page: None)
    with pytest.raises(AssertionError, match=r"^eviction asked for where nothing is cached"):
        LeastRecentlyUsed(pool).pop()


def test_the_books_are_small() -> None:
    """25 bytes a page, in whole numbers: sums of any length stay exact."""
    pool = PagePool(1000, on_evict=lambda page: None)
    books = (pool.state, pool.refs, pool.generation, pool.last_used, pool.depth)
    assert [book.dtype for book in books] == [np.uint8, np.int32, np.int64, np.int64, np.int32]
    assert pool.cached_pages().dtype == np.int32
