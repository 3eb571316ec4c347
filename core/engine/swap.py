"""Preemption by swap: sequences whose entries are on their way to the host, lie there, or are on their way back.

Owns the pages on the host and the numbers of transfers; refuses nothing: what finds no room there is computed again.

Design. Compute never waits for a transfer. A sequence that is preempted keeps its pages on the device until they are
copied, and those that come free then are counted before anyone else is preempted. One that is admitted again leases
what the prefix cache still has, gets pages for the rest, and is LOADING until that has arrived; meanwhile it has its
place among those that run, and may be preempted again. Transfers start in plans and are reported complete in the
outputs of later steps; a plan without anything to compute waits for the oldest one. After a failed step every transfer
under way is given up: nobody knows how far it came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Sequences

from core.engine.sequence import Sequence
from core.engine.step import Transfer
from core.kv.cache import BlockTable, KVCache, Lease
from core.kv.host import HostCopy, HostPool


class Swaps:
    """Transfers between the pages of a cache and those on the host: `num_pages` per KV group; 0: nothing is swapped.

    num_out, num_refused       preempted sequences that went to the host, and that found no room there
    num_pages_out, num_pages_in   pages of all groups that were copied
    transferred                number of the last transfer that is over: reported complete, or given up
    """

    def __init__(self, cache: KVCache, num_pages: Sequences[int]) -> None:
        self._cache = cache
        self.host = HostPool(num_pages or [0] * len(cache.pools))
        self.num_out = self.num_refused = self.num_pages_out = self.num_pages_in = 0
        self.transferred = 0
        self._num = 0
        self._new: list[Transfer] = []
        self._under_way: deque[tuple[Transfer, Sequence]] = deque()

    @property
    def under_way(self) -> bool:
        return bool(self._under_way)

    def begin_out(self, seq: Sequence) -> bool:
        """Copy what was computed of a sequence to the host. False: nothing was, or it has no room there."""
        if not any(self.host.num_pages) or not seq.num_computed:
            return False
        assert seq.table is not None
        end = self._cache.pages_for(seq.num_computed)
        pages = [table[first:end].tolist() for table, first in zip(seq.table.pages, seq.table.first, strict=True)]
        places = self.host.take([len(each) for each in pages])
        if places is None:
            self.num_refused += 1
            return False
        seq.host = HostCopy(seq.num_computed, list(seq.table.first), places)
        self.num_out += 1
        self.num_pages_out += sum(map(len, pages))
        self._begin(seq, True, pages, places)
        return True

    def begin_in(self, seq: Sequence, lease: Lease) -> BlockTable:
        """Copy what a lease lacks of a sequence's entries back from the host. Returns its block table."""
        copy = seq.host
        assert copy is not None
        table, starts = self._cache.reopen(lease, copy.num_tokens)
        pages = [table.pages[g][start : table.length].tolist() for g, start in enumerate(starts)]
        places = [copy.pages[g][start - copy.first[g] :] for g, start in enumerate(starts)]
        self.num_pages_in += sum(map(len, pages))
        self._begin(seq, False, pages, places)
        return table

    def _begin(self, seq: Sequence, to_host: bool, pages: list[list[int]], places: list[list[int]]) -> None:
        self._num += 1
        seq.transfer = self._num
        transfer = Transfer(self._num, to_host, pages, places)
        self._new.append(transfer)
        self._under_way.append((transfer, seq))

    def take_new(self) -> list[Transfer]:
        """Transfers that no plan has started yet."""
        taken, self._new = self._new, []
        return taken

    def complete(self, number: int) -> list[Sequence]:
        """Sequences whose transfers are complete, now that all up to `number` are."""
        self.transferred = max(self.transferred, number)
        done = []
        while self._under_way and self._under_way[0][0].number <= number:
            _, seq = self._under_way.popleft()
            seq.transfer = 0
            done.append(seq)
        return done

    def give_up(self) -> list[Sequence]:
        """Forget every transfer under way; returns its sequences. What was to come to the host is not there."""
        given_up = list(self._under_way)
        self._under_way.clear()
        self._new.clear()
        self.transferred = self._num  # so that other ranks, too, wait for what they started, before the next step
        for transfer, seq in given_up:
            seq.transfer = 0
            if transfer.to_host:
                self.drop(seq)
        return [seq for _, seq in given_up]

    def drop(self, seq: Sequence) -> None:
        """Give back a sequence's pages on the host, if it has any."""
        if seq.host is not None:
            self.host.give(seq.host.pages)
            seq.host = None
