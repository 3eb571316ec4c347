"""The KV cache as the scheduler sees it: block tables of sequences over the page pools of all groups.

Owns pinning, growing, committing, trimming and closing of block tables. Every change of a table is reported as an
`Edit`, because devices hold copies of the tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from core.kv.events import GROUP, KVEvents
from core.kv.groups import KVGroup
from core.kv.pool import PagePool, Pages
from core.kv.prefix import KEY_BYTES, PrefixIndex


class Edit(NamedTuple):
    """Entry `position` of a sequence's block table for `group` now names `page`."""

    group: int
    position: int
    page: int


@dataclass
class Lease:
    """A pinned prefix: these pages stay as they are until the lease, or the table made from it, is closed.

    num_tokens   tokens whose entries are all here
    pages        per group, by position; 0 where the group no longer retains the entry
    foretold     whether draft layers, where there are any, have their entries there, too
    """

    num_tokens: int
    pages: list[Pages]
    foretold: bool = True


class BlockTable:
    """Pages of one sequence, per group. `pages[g][: length]` by position; entries below `first[g]` are dropped.

    capacity    tokens that there are pages for
    committed   pages that can be found by their key
    """

    def __init__(self, lease: Lease, page_tokens: int) -> None:
        self.capacity = lease.num_tokens
        self.length = lease.num_tokens // page_tokens
        self.committed = self.length
        self.pages = [np.concatenate([p, np.zeros(8, np.int32)]) for p in lease.pages]
        self.first = [int(np.count_nonzero(p == 0)) for p in lease.pages]

    def append(self, group: int, index: int, pages: Sequence[int]) -> None:
        """Set entries from `index` on. The array is replaced, never moved under who still reads the old one."""
        table = self.pages[group]
        if index + len(pages) > len(table):
            table = np.concatenate([table, np.zeros(max(len(table), len(pages)), np.int32)])
            self.pages[group] = table
        table[index : index + len(pages)] = pages

    def held(self, group: int) -> Pages:
        """The pages this table has a reference to."""
        return self.pages[group][self.first[group] : self.length]


class KVCache:
    """Pools and indexes of all groups, each with `num_pages` pages of `page_tokens` tokens (page 0 is null).

    step_tokens   tokens in flight, at most: what a sequence holds beside its window. None: not known, so every group
                  is asked for as many pages as one that keeps all.
    """

    def __init__(
        self,
        groups: Sequence[KVGroup],
        num_pages: Sequence[int],
        page_tokens: int,
        prefix: bool,
        step_tokens: int | None = None,
    ) -> None:
        self.groups = tuple(groups)
        self.page_tokens = page_tokens
        self.prefix_caching = prefix
        self._windows = [(g, group.retain) for g, group in enumerate(groups) if group.retain is not None]
        self._most = [None if step_tokens is None else group.pages_held(page_tokens, step_tokens) for group in groups]
        self.indexes = [PrefixIndex(n) for n in num_pages]
        self.pools = [PagePool(n, on_evict=partial(self._forget, g)) for g, n in enumerate(num_pages)]
        self._ahead = [g for g, group in enumerate(groups) if group.lookahead]
        self.lookahead = max(group.lookahead for group in groups)
        self._skipped = {g: np.zeros(num_pages[g], bool) for g in self._ahead}  # pages that draft layers did not fill
        self.events: KVEvents | None = None  # who is told of pages that can be found, and of those that no longer can

    def _forget(self, group: int, page: int) -> None:
        key = self.indexes[group].forget(page)
        if self.events and group == GROUP:
            self.events.removed(key)

    @property
    def windowed(self) -> bool:
        """Whether some group drops pages as sequences grow: then `trim` has work to do."""
        return bool(self._windows)

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_tokens)

    def lease(self, keys: bytes, max_tokens: int, ahead: bytes = b"") -> Lease:
        """Pin the longest right prefix of at most `max_tokens` tokens, at a boundary where every group can resume.

        ahead   keys for groups that look ahead (`core.kv.prefix.ahead_keys`): there, entries that rest on other tokens
                than those that follow here are none of this prefix
        """
        of = self._keys(keys, ahead)
        limit = min([max_tokens // self.page_tokens, *(len(each) // KEY_BYTES for each in of)])
        limit = limit if self.prefix_caching else 0
        full = {g: self.indexes[g].longest(of[g], limit) for g, group in enumerate(self.groups) if group.retain is None}
        end = self._boundary(of, min([limit, *map(len, full.values())]))
        tables = [full[g][:end] if g in full else self._resume(g, of[g], end) for g in range(len(self.groups))]
        for pool, pages in zip(self.pools, tables, strict=True):
            pool.pin(pages[pages != 0])
        return Lease(end * self.page_tokens, tables, not any(self._skipped[g][tables[g]].any() for g in self._ahead))

    def _keys(self, keys: bytes, ahead: bytes) -> list[bytes]:
        """Of each group."""
        return [ahead if group.lookahead else keys for group in self.groups]

    def _boundary(self, keys: Sequence[bytes], limit: int) -> int:
        """The greatest boundary, in pages and at most `limit`, where every window can resume."""
        end = limit
        while end > 0:
            gaps = [self.indexes[g].gap(keys[g], end, self._tail(g, end)) for g, _ in self._windows]
            gap = max(gaps, default=-1)
            if gap < 0:
                break
            end = gap  # whatever boundary lies between needs this page too
        return end

    def _tail(self, group: int, end: int) -> int:
        """Pages before boundary `end` that a group with a window must have there; the token after it sees itself."""
        retain = self.groups[group].retain
        assert retain is not None
        return min(end, self.pages_for(retain - 1))

    def _resume(self, group: int, keys: bytes, end: int) -> Pages:
        num = self._tail(group, end)
        return np.concatenate([np.zeros(end - num, np.int32), self.indexes[group].tail(keys, end, num)])

    def open(self, lease: Lease) -> BlockTable:
        """A block table that starts with a lease and takes over its pins."""
        return BlockTable(lease, self.page_tokens)

    def reopen(self, lease: Lease, num_tokens: int) -> tuple[BlockTable, list[int]]:
        """A block table as `open`, with pages for `num_tokens` tokens, more than the lease has: entries that lie
        elsewhere will be copied into them. Windows get only what a token from there on sees.

        Returns, per group, the position of the first page to fill. The pages must be there (`can_take`).
        """
        table = self.open(lease)
        known, end = table.length, self.pages_for(num_tokens)
        self.trim(table, num_tokens)
        starts = [max(known, self._first_seen(group.retain, num_tokens)) for group in self.groups]
        for g, (pool, start) in enumerate(zip(self.pools, starts, strict=True)):
            table.append(g, known, [0] * (start - known) + pool.allocate(end - start))
            if start > known:
                table.first[g] = start
        table.length, table.capacity = end, end * self.page_tokens
        return table, starts

    def _first_seen(self, retain: int | None, num_computed: int) -> int:
        """Position of the first page that a token from `num_computed` on sees."""
        return 0 if retain is None else max(0, num_computed + 1 - retain) // self.page_tokens

    def missing(self, table: BlockTable, num_tokens: int) -> int:
        """Pages that each group needs for the table to hold `num_tokens` tokens."""
        return max(0, self.pages_for(num_tokens) - table.length)

    def can_take(self, num_pages: int) -> bool:
        """Whether every group has room for a sequence that grows by `num_pages` pages.

        A window takes no more than what lies in it at a time, so there the rest need not be free: it comes free as the
        sequence goes on. Pages for the tokens of one step are never more than that.
        """
        return all(
            [
                pool.num_available >= (num_pages if most is None else min(num_pages, most))
                for pool, most in zip(self.pools, self._most, strict=True)
            ]
        )

    def can_take_after(self, tables: Sequence[BlockTable], num_pages: int) -> bool:
        """Whether every group will have `num_pages` pages to give once these tables are closed."""
        for g, pool in enumerate(self.pools):
            coming = sum(int((pool.refs[table.held(g)] == 1).sum()) for table in tables)
            if pool.num_available + coming < num_pages:
                return False
        return True

    def grow(self, table: BlockTable, num_tokens: int) -> list[Edit]:
        """Make room for `num_tokens` tokens. The pages must be there (`missing`, `can_take`)."""
        num = self.missing(table, num_tokens)
        if not num:
            return []
        edits = []
        for g, pool in enumerate(self.pools):
            pages = pool.allocate(num)
            table.append(g, table.length, pages)
            edits += [Edit(g, table.length + i, page) for i, page in enumerate(pages)]
        table.length += num
        table.capacity = table.length * self.page_tokens
        return edits

    def commit(
        self,
        table: BlockTable,
        keys: bytes,
        num_pages: int,
        token_ids: Sequence[int] = (),
        *,
        ahead: bytes = b"",
        foretold: bool = True,
    ) -> list[Edit]:
        """Make the first `num_pages` pages of the table findable under `keys`; all their tokens are computed.

        token_ids   of the sequence, for events
        ahead       keys for groups that look ahead, as in `lease`: pages that have none of these wait
        foretold    draft layers have computed them, too

        Where another sequence was first with the same content, the table changes to that sequence's page, so that
        whoever holds a page holds all pages before it.
        """
        edits: list[Edit] = []
        of = self._keys(keys, ahead)
        num_pages = min([num_pages, *(len(each) // KEY_BYTES for each in of)])
        for i in range(table.committed, num_pages):
            for g, each in enumerate(of):
                if i >= table.first[g]:
                    edits += self._commit_page(table, g, i, each[i * KEY_BYTES : (i + 1) * KEY_BYTES], foretold)
        if self.events:
            known = {edit.position for edit in edits if edit.group == GROUP}
            first = max(table.committed, table.first[GROUP])
            self.events.stored(of[GROUP], [i for i in range(first, num_pages) if i not in known], token_ids)
        table.committed = max(table.committed, num_pages)
        return edits

    def _commit_page(self, table: BlockTable, g: int, i: int, key: bytes, foretold: bool) -> list[Edit]:
        pool, index = self.pools[g], self.indexes[g]
        mine, known = int(table.pages[g][i]), index.find(key)
        if known is None:
            pool.commit(mine, i)
            if g in self._skipped:
                self._skipped[g][mine] = not foretold
            index.insert(key, mine, table.pages[g])
            return []
        pool.pin(np.array([known], np.int32))
        pool.release(np.array([mine], np.int32))
        table.pages[g][i] = known
        return [Edit(g, i, known)]

    def trim(self, table: BlockTable, num_computed: int) -> None:
        """Drop pages that no token from `num_computed` on can see. Devices need not know: nothing reads them."""
        for g, retain in self._windows:
            keep = min(self._first_seen(retain, num_computed), table.length)
            if keep > table.first[g]:
                gone = table.pages[g][table.first[g] : keep].copy()
                table.first[g] = keep
                self.pools[g].release(gone)

    def shorten(self, table: BlockTable, length: int) -> None:
        """Give back the pages of a table from position `length` on. Its sequence runs no more.

        The last ones first: what can be found in the cache is found by way of all before it.
        """
        for g, pool in enumerate(self.pools):
            pool.release(table.pages[g][max(table.first[g], length) : table.length].copy())
        table.length = length

    def close(self, table: BlockTable) -> None:
        """Give back every page of the table."""
        for g, pool in enumerate(self.pools):
            pool.release(table.held(g))
            table.first[g] = table.length

    def cancel(self, lease: Lease) -> None:
        """Give back a lease that became no table."""
        for pool, pages in zip(self.pools, lease.pages, strict=True):
            pool.release(pages[pages != 0])
