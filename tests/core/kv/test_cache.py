"""The KV cache against a naive twin: tables are dicts, references are counted anew, eviction sorts everything.

Ids come from two letters and two salts, so sequences keep meeting in what they hold.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

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
from core.kv.cache import BlockTable, KVCache, Lease
from core.kv.groups import KVGroup
from core.kv.pool import PageState
from core.kv.prefix import KEY_BYTES, ahead_keys, chain_keys, root_key

operations = 0
Chain = tuple[str, tuple[int, ...]]  # salt, and every id up to the end of a page


@dataclass(eq=False)
class Sequence:
    """A sequence as the twin sees it: `held` maps positions to pages, per group."""

    salt: str
    ids: list[int]
    held: list[dict[int, int]]
    length: int  # pages
    computed: int = 0  # tokens
    committed: int = 0  # pages
    table: BlockTable = field(init=False, repr=False)

    def chain(self, position: int, page: int) -> Chain:
        return self.salt, tuple(self.ids[: (position + 1) * page])


class Group:
    """What one group must hold."""

    def __init__(self, retain: int | None, num_pages: int) -> None:
        self.retain = retain
        self.pages = set(range(1, num_pages))
        self.known: dict[Chain, int] = {}
        self.age: dict[int, int] = {}
        self.now = 0

    def forget(self, count: int, used: set[int]) -> set[int]:
        """The pages that go when `count` are needed beyond the free ones."""
        cached = {page: len(ids) for (_, ids), page in self.known.items() if page not in used}
        victims = sorted(cached, key=lambda page: (self.age[page], -cached[page]))[:count]
        self.known = {chain: page for chain, page in self.known.items() if page not in victims}
        return set(victims)

    def released(self, pages: list[int]) -> None:
        self.now += 1
        self.age.update(dict.fromkeys(pages, self.now))


class CacheMachine(RuleBasedStateMachine):
    @initialize(
        page=st.sampled_from([1, 2, 3]),
        num_pages=st.sampled_from([4, 9, 15, 40]),
        retains=st.sampled_from([(None,), (None, 1), (None, 2), (None, 5), (None, 1, 4), (3,), (1, 4)]),
        prefix=st.sampled_from([True, True, True, False]),
        seed=st.integers(0, 2**32),
    )
    def start(self, page: int, num_pages: int, retains: tuple[int | None, ...], prefix: bool, seed: int) -> None:
        self.rng = random.Random(seed)
        self.page, self.num_pages, self.prefix = page, num_pages, prefix
        self.cache = KVCache([KVGroup(1, 1, 1, retain=r) for r in retains], [num_pages] * len(retains), page, prefix)
        self.groups = [Group(r, num_pages) for r in retains]
        self.alive: list[Sequence] = []
        self.history: list[list[int]] = [[]]

    # Naive answers

    def used(self, g: int) -> set[int]:
        return {page for seq in self.alive for page in seq.held[g].values()}

    def free(self, g: int) -> set[int]:
        return self.groups[g].pages - self.used(g) - set(self.groups[g].known.values())

    def needed(self, group: Group, end: int) -> range:
        """Positions that a group must have to go on from boundary `end`."""
        if group.retain is None:
            return range(end)
        return range(max(0, end - -(-(group.retain - 1) // self.page)), end)

    def boundary(self, seq: Sequence, limit: int) -> int:
        for end in range(limit if self.prefix else 0, 0, -1):
            wanted = [(group, i) for group in self.groups for i in self.needed(group, end)]
            if all(seq.chain(i, self.page) in group.known for group, i in wanted):
                return end
        return 0

    def keys(self, seq: Sequence) -> bytes:
        return chain_keys(root_key(b"spec", seq.salt), seq.ids, self.page)

    # Operations

    @rule(salt=st.sampled_from(["", "x"]), keep=st.integers(0, 3))
    def lease(self, salt: str, keep: int) -> None:
        known = self.rng.choice(self.history)
        ids = known[: self.rng.randint(0, len(known))] + self.letters(self.rng.randint(0, 4))
        seq = Sequence(salt, ids, [{} for _ in self.groups], 0)
        max_tokens = self.rng.randint(0, len(ids))
        lease = self.cache.lease(self.keys(seq), max_tokens)
        seq.length = seq.committed = self.boundary(seq, max_tokens // self.page)
        seq.computed = seq.length * self.page
        assert lease.num_tokens == seq.computed
        for g, group in enumerate(self.groups):
            seq.held[g] = {i: group.known[seq.chain(i, self.page)] for i in self.needed(group, seq.length)}
            assert lease.pages[g].tolist() == [seq.held[g].get(i, 0) for i in range(seq.length)]
        self.alive.append(seq)
        if keep == 1 and len(ids) > seq.computed and self.room() >= -(-len(ids) // self.page) - seq.length:
            self.reopen(seq, lease)
        elif keep:
            seq.table = self.cache.open(lease)
        else:
            self.agrees()
            self.cache.cancel(lease)
            self.forget(seq)

    def room(self) -> int:
        """Pages that every group can hand out."""
        return min(len(group.pages - self.used(g)) for g, group in enumerate(self.groups))

    def reopen(self, seq: Sequence, lease: Lease) -> None:
        """As if the rest of its tokens were computed, and lay elsewhere."""
        known, seq.computed = seq.length, len(seq.ids)
        seq.length = -(-seq.computed // self.page)
        seq.table, starts = self.cache.reopen(lease, seq.computed)
        for g, group in enumerate(self.groups):
            first_seen = 0 if group.retain is None else max(0, seq.computed - group.retain + 1)
            assert starts[g] == max(known, first_seen // self.page)
            gone = [i for i in seq.held[g] if (i + 1) * self.page <= first_seen]
            if gone:
                group.released([seq.held[g].pop(i) for i in gone])
            num, free = seq.length - starts[g], self.free(g)
            if num > len(free):
                free |= group.forget(num - len(free), self.used(g))
            taken = seq.table.pages[g][starts[g] : seq.length].tolist()
            assert set(taken) <= free
            assert len(set(taken)) == num
            seq.held[g].update(enumerate(taken, starts[g]))

    def letters(self, count: int) -> list[int]:
        return [self.rng.randrange(2) for _ in range(count)]

    @precondition(lambda self: self.alive)
    @rule(more=st.integers(0, 8))
    def grow(self, more: int) -> None:
        seq = self.rng.choice(self.alive)
        num_tokens = seq.length * self.page + more
        num = -(-num_tokens // self.page) - seq.length
        assert self.cache.missing(seq.table, num_tokens) == num
        room = self.room()
        assert self.cache.can_take(num) == (room >= num)
        if num > room:
            # All groups have room for the same tokens, or none takes anything.
            if len(self.groups) == 1:
                with pytest.raises(CapacityError):
                    self.cache.grow(seq.table, num_tokens)
            return
        evicted = [group.forget(num - len(self.free(g)), self.used(g)) if num > len(self.free(g)) else set()
                   for g, group in enumerate(self.groups)]  # fmt: skip
        edits = self.cache.grow(seq.table, num_tokens)
        assert [(g, i) for g, i, _ in edits] == [
            (g, seq.length + i) for g in range(len(self.groups)) for i in range(num)
        ]
        for g, gone in enumerate(evicted):
            taken = {edit.page for edit in edits if edit.group == g}
            assert len(taken) == num
            assert taken <= self.free(g), "a page was handed out that somebody holds, or that should be found"
            assert gone <= self.free(g)
        for g, i, page in edits:
            seq.held[g][i] = page
        seq.length += num
        seq.ids += self.letters(max(0, num_tokens - len(seq.ids)))

    @precondition(lambda self: self.alive)
    @rule()
    def compute(self) -> None:
        """Some tokens more are there: their pages are committed, and what no later token sees is dropped."""
        seq = self.rng.choice(self.alive)
        seq.computed = self.rng.randint(seq.computed, min(seq.length * self.page, len(seq.ids)))
        if self.prefix:
            edits = self.cache.commit(seq.table, self.keys(seq), seq.computed // self.page)
            assert [tuple(edit) for edit in edits] == self.commit(seq)
            self.history.append(list(seq.ids))
        self.cache.trim(seq.table, seq.computed)
        for g, group in enumerate(self.groups):
            if group.retain is None:
                continue
            # The next token stands at `computed` and sees itself and retain - 1 before it.
            first_seen = seq.computed - group.retain + 1
            gone = [i for i in seq.held[g] if (i + 1) * self.page <= first_seen]
            group.released([seq.held[g].pop(i) for i in gone])

    def commit(self, seq: Sequence) -> list[tuple[int, int, int]]:
        edits = []
        for i in range(seq.committed, seq.computed // self.page):
            chain = seq.chain(i, self.page)
            for g, group in enumerate(self.groups):
                if i not in seq.held[g]:
                    continue
                if chain in group.known:
                    edits.append((g, i, group.known[chain]))
                    seq.held[g][i] = group.known[chain]
                else:
                    group.known[chain] = seq.held[g][i]
        seq.committed = max(seq.committed, seq.computed // self.page)
        return edits

    @precondition(lambda self: self.alive)
    @rule()
    def close(self) -> None:
        seq = self.rng.choice(self.alive)
        self.cache.close(seq.table)
        self.forget(seq)

    def forget(self, seq: Sequence) -> None:
        self.alive.remove(seq)
        for g, group in enumerate(self.groups):
            group.released(list(seq.held[g].values()))

    @invariant()
    def agrees(self) -> None:
        global operations
        operations += 1
        for g, (group, pool) in enumerate(zip(self.groups, self.cache.pools, strict=True)):
            holders: dict[int, int] = {}
            for seq in self.alive:
                for page in seq.held[g].values():
                    holders[page] = holders.get(page, 0) + 1
            assert {i: n for i, n in enumerate(pool.refs.tolist()) if n} == holders
            known, free = set(group.known.values()), self.free(g)
            assert len(known) == len(group.known)
            for page, state in enumerate(pool.state.tolist()):
                wanted = PageState.VALID if page in known else PageState.FILLING if page in holders else PageState.FREE
                assert state == wanted, page
            assert (pool.num_free, pool.num_cached, pool.num_used) == (
                len(free), len(known - set(holders)), len(holders),
            )  # fmt: skip
            assert pool.num_free + pool.num_cached + pool.num_used == self.num_pages - 1
            index = self.cache.indexes[g]
            assert len(index) == len(known)
            for (salt, ids), page in group.known.items():
                key = chain_keys(root_key(b"spec", salt), ids, self.page)[-KEY_BYTES:]
                assert index.find(key) == page

    def teardown(self) -> None:
        for seq in getattr(self, "alive", []):
            self.cache.close(seq.table)
        assert not any(pool.num_used for pool in self.cache.pools)


def test_random_operations() -> None:
    run_state_machine_as_test(CacheMachine, settings=settings(max_examples=250, stateful_step_count=50))
    assert operations >= 10_000


# One thing each


def fill(cache: KVCache, ids: list[int], salt: str = "", close: bool = True) -> BlockTable:
    """A sequence that computed all of `ids`."""
    keys = chain_keys(root_key(b"spec", salt), ids, cache.page_tokens)
    table = cache.open(cache.lease(keys, len(ids)))
    cache.grow(table, len(ids))
    cache.commit(table, keys, len(ids) // cache.page_tokens)
    cache.trim(table, len(ids))
    if close:
        cache.close(table)
    return table


def make(retain: int | None = None, num_pages: int = 20, page: int = 2, prefix: bool = True) -> KVCache:
    groups = [KVGroup(1, 1, 1)] + ([KVGroup(1, 1, 1, retain=retain)] if retain else [])
    return KVCache(groups, [num_pages] * len(groups), page, prefix)


def leased(cache: KVCache, ids: list[int], max_tokens: int | None = None, salt: str = "") -> int:
    lease = cache.lease(
        chain_keys(root_key(b"spec", salt), ids, cache.page_tokens), len(ids) if max_tokens is None else max_tokens
    )
    cache.cancel(lease)
    return lease.num_tokens


def test_a_prefix_is_found_up_to_the_limit_and_the_last_full_page() -> None:
    cache = make()
    fill(cache, [1, 2, 3, 4, 5])
    assert leased(cache, [1, 2, 3, 4, 5, 6]) == 4
    assert leased(cache, [1, 2, 3, 4], max_tokens=3) == 2
    assert leased(cache, [1, 2, 9, 4]) == 2
    assert leased(cache, [9, 2, 3, 4]) == 0


def test_different_salts_never_meet() -> None:
    cache = make()
    fill(cache, [1, 2, 3, 4], salt="a")
    assert leased(cache, [1, 2, 3, 4], salt="a") == 4
    assert leased(cache, [1, 2, 3, 4], salt="b") == 0
    assert leased(cache, [1, 2, 3, 4]) == 0


def test_nothing_is_found_without_prefix_caching() -> None:
    cache = make(prefix=False)
    keys = chain_keys(root_key(b"spec", ""), [1, 2, 3, 4], 2)
    table = cache.open(cache.lease(keys, 4))
    cache.grow(table, 4)
    cache.close(table)
    assert leased(cache, [1, 2, 3, 4]) == 0
    assert cache.pools[0].num_free == 19


def test_the_second_of_two_with_the_same_content_takes_the_page_of_the_first() -> None:
    cache, ids = make(), [1, 2, 3, 4]
    keys = chain_keys(root_key(b"spec", ""), ids, 2)
    one, two = (cache.open(cache.lease(keys, 0)) for _ in range(2))
    for table in (one, two):
        cache.grow(table, 4)
    own = two.held(0).tolist()
    assert not cache.commit(one, keys, 2)
    edits = cache.commit(two, keys, 2)
    assert [tuple(edit) for edit in edits] == [(0, i, page) for i, page in enumerate(one.held(0).tolist())]
    assert two.held(0).tolist() == one.held(0).tolist()
    assert cache.pools[0].num_used == 2
    assert not cache.pools[0].refs[own].any(), "its own pages are free"
    assert cache.pools[0].refs[one.held(0)].tolist() == [2, 2]


def test_a_lease_keeps_its_pages_and_keys() -> None:
    cache, ids = make(num_pages=6), [1, 2, 3, 4]
    fill(cache, ids)
    keys = chain_keys(root_key(b"spec", ""), ids, 2)
    lease = cache.lease(keys, 4)
    other = fill(cache, [7, 8, 9, 7, 8, 9], close=False)
    assert not set(other.held(0).tolist()) & set(lease.pages[0].tolist())
    assert not cache.can_take(1)
    assert leased(cache, ids) == 4


def test_a_window_group_drops_what_no_token_sees_and_resumes_where_it_can() -> None:
    """Of 12 tokens, a window of 4 keeps those from 9 on: the token to come, at 12, sees 9 .. 12."""
    cache, ids = make(retain=4), list(range(12))
    table = fill(cache, ids, close=False)
    assert len(table.held(0)) == 6
    assert len(table.held(1)) == 2
    cache.close(table)
    assert leased(cache, ids) == 12
    # Take so many pages that the window group must give up its oldest: dropped first, evicted first.
    taken = cache.pools[1].allocate(14 + 3)
    assert leased(cache, ids) == 12
    assert leased(cache, ids, max_tokens=6) == 0, "its window at 6 is gone, whatever the first group has"
    assert len(taken) == 17


def test_where_all_groups_have_windows_a_prefix_resumes_at_the_last_boundary_with_its_window() -> None:
    cache, ids = KVCache([KVGroup(1, 1, 1, retain=4)], [20], 2, True), list(range(12))
    table = fill(cache, ids, close=False)
    assert table.held(0).tolist() == table.pages[0][4:6].tolist()
    cache.close(table)
    assert leased(cache, [*ids[:8], 99, 99]) == 8, "pages outside of windows stay until they are evicted"
    assert leased(cache, ids) == 12
    cache.pools[0].allocate(13 + 3)  # what was dropped first is evicted first
    assert leased(cache, ids) == 12
    assert leased(cache, ids, max_tokens=11) == 0


def test_a_window_needs_room_for_what_lies_in_it_and_not_for_a_whole_prompt() -> None:
    """A window of 4 in pages of 2, and steps of 2 tokens, in flight: at most 5 pages at a time."""
    groups = [KVGroup(1, 1, 1), KVGroup(1, 1, 1, retain=4)]
    assert groups[1].pages_held(2, 2) == 5
    assert groups[0].pages_held(2, 2) is None
    cache = KVCache(groups, [101, 11], 2, True, step_tokens=2)
    assert cache.can_take(100)
    assert not cache.can_take(101)
    taken = cache.pools[1].allocate(6)
    assert not cache.can_take(100)
    assert cache.can_take(4)
    cache.pools[1].release(np.array(taken, np.int32))
    ids = list(range(200))
    keys = chain_keys(root_key(b"spec", ""), ids, 2)
    table = cache.open(cache.lease(keys, 199))
    most = 0
    for end in range(2, 201, 2):
        cache.grow(table, end)
        most = max(most, len(table.held(1)))
        cache.commit(table, keys, end // 2)
        cache.trim(table, end)
    assert most == 3, "of 200 tokens"


def test_tables_grow_without_moving_under_who_reads_them() -> None:
    cache = make(num_pages=200, page=1)
    table = fill(cache, list(range(30)), close=False)
    before, page = table.pages[0], int(table.pages[0][29])
    cache.grow(table, 150)
    assert before[29] == page
    assert table.pages[0] is not before
    assert len(set(table.held(0).tolist())) == 150


def test_a_lease_says_whether_draft_layers_have_entries_in_all_of_it() -> None:
    groups = [KVGroup(1, 1, 8), KVGroup(2, 1, 8, lookahead=1)]
    cache = KVCache(groups, [20, 20], 2, True)
    ids = [1, 2, 3, 4, 5, 6, 7]
    keys = chain_keys(root_key(b"spec", ""), ids, 2)
    ahead = ahead_keys(keys, ids, 2, 1)
    for num, foretold in ((4, True), (6, False)):
        table = cache.open(cache.lease(keys, num, ahead))
        cache.grow(table, num)
        cache.commit(table, keys, num // 2, ahead=ahead, foretold=foretold)
        cache.close(table)
    assert cache.lease(keys, 4, ahead).foretold
    assert not cache.lease(keys, 6, ahead).foretold


def test_pages_whose_entries_look_ahead_are_known_by_what_follows_them() -> None:
    cache = KVCache([KVGroup(1, 1, 8), KVGroup(2, 1, 8, lookahead=2)], [20, 20], 2, True)

    def keys_of(ids: list[int]) -> tuple[bytes, bytes]:
        keys = chain_keys(root_key(b"spec", ""), ids, 2)
        return keys, ahead_keys(keys, ids, 2, 2)

    def run(ids: list[int]) -> tuple[int, list[list[int]]]:
        """How many tokens were found, and the pages that there are in the end."""
        keys, ahead = keys_of(ids)
        lease = cache.lease(keys, len(ids) - 1, ahead)
        table = cache.open(lease)
        cache.grow(table, len(ids))
        cache.commit(table, keys, len(ids) // 2, ahead=ahead)
        pages = [table.held(g).tolist() for g in range(2)]
        cache.close(table)
        return lease.num_tokens, pages

    first, (one, ahead_one) = run([1, 2, 3, 4, 5, 6, 7])
    other, (two, ahead_two) = run([1, 2, 3, 4, 8, 9, 7])
    again, _ = run([1, 2, 3, 4, 8, 9, 7])
    short, _ = run([1, 2, 3, 4, 5])
    assert (first, other, again, short) == (0, 2, 4, 2)
    assert one[:2] == two[:2], "the same tokens, the same page"
    assert ahead_one[0] == ahead_two[0]
    assert ahead_one[1] != ahead_two[1], "the tokens that follow are others"
    assert not cache.lease(*keys_of([1, 2, 3])[:1], 2).num_tokens, "nobody knows what follows"
