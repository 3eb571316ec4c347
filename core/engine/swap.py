"""Preemption by swap: sequences whose entries are on their way to the host, lie there, or are on their way back.

Owns the pages on the host and the numbers of transfers; refuses nothing: what finds no room there is computed again.

Design. Compute never waits for a transfer. A sequence that is preempted keeps each page on the device until it is
copied, and those that come free then are counted before anyone else is preempted. One that is admitted again leases
what the prefix cache still has, gets pages for the rest, and is LOADING until that has arrived; meanwhile it has its
place among those that run, and may be preempted again. Transfers start in plans and are reported complete in the
outputs of later steps; a plan without anything to compute waits for the oldest one. After a failed step every transfer
under way is given up: nobody knows how far it came.

A copy engine does one copy after the other, and each step has inputs and ids to copy too. So what is to be moved is cut
into transfers: with each step goes as much as can be copied while it computes, whole pages and then some layers of
one. How much that is, steps tell: when one has computed and a transfer that was started before it is still under way,
it was too much (`Pace`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence as Sequences
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from core.engine.sequence import Sequence
from core.engine.step import Transfer
from core.kv.cache import BlockTable, KVCache, Lease
from core.kv.host import HostCopy, HostPool


class Pace:
    """How many pieces are copied beside a step: more each time that it had time for more, fewer when it had not.

    A piece is what one layer has of a page. Their number is found in great steps, until it was too many and then no
    more, and in small ones from then on: it falls faster than it grows, because too many hold up the next step.
    """

    def __init__(self, num_pieces: float) -> None:
        self._mean = num_pieces
        self._down, self._up = 1 / 2, 3 / 2
        self._was_late = False
        self._settled = True

    @property
    def num_pieces(self) -> int:
        return int(self._mean)

    def hear(self, late: bool, more: bool) -> None:
        """Of a step beside which pieces were copied: whether that took longer than it did; if there is more to copy."""
        if not self._settled:
            self._settled = True  # the step in flight meanwhile had its pieces before
        elif late:
            self._mean = max(1, self._mean * self._down)
            self._settled, self._was_late = False, True
        else:
            if self._was_late:
                self._down, self._up = 7 / 8, 17 / 16
            if more:
                self._mean *= self._up


class _Entry(NamedTuple):
    """A page that is copied: its position in the block table, its KV group, where it is on the device and the host."""

    position: int
    group: int
    page: int
    place: int


@dataclass(eq=False)
class _Move:
    """Pages of one sequence that go the same way.

    left     those not started yet, or not with all layers, from the last position to the first
    begun    layers of the first of them that were started
    """

    seq: Sequence
    to_host: bool
    left: list[_Entry]
    begun: int = 0


class _Started(NamedTuple):
    """A transfer; when it is complete, its sequence has nothing under way at positions from `length` on."""

    number: int
    move: _Move
    length: int


class Swaps:
    """Transfers between the pages of a cache and those on the host: `num_pages` per KV group; 0: nothing is swapped.

    num_out, num_refused       preempted sequences that went to the host, and that found no room there
    num_pages_out, num_pages_in   pages of all groups that were copied
    transferred                number of the last transfer that is over: reported complete, or given up
    pace                       how much goes beside a step
    """

    def __init__(self, cache: KVCache, num_pages: Sequences[int]) -> None:
        self._cache = cache
        self.host = HostPool(num_pages or [0] * len(cache.pools))
        self.num_out = self.num_refused = self.num_pages_out = self.num_pages_in = 0
        self.transferred = 0
        self._num_layers = [group.num_layers for group in cache.groups]
        self.pace = Pace(max(self._num_layers))
        self._num = 0
        self._moves: list[_Move] = []
        self._started: deque[_Started] = deque()

    @property
    def under_way(self) -> bool:
        """Whether anything is to be moved, or being moved."""
        return bool(self._moves)

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
        self._begin(seq, True, seq.host.first, pages, places)
        return True

    def begin_in(self, seq: Sequence, lease: Lease) -> BlockTable:
        """Copy what a lease lacks of a sequence's entries back from the host. Returns its block table."""
        copy = seq.host
        assert copy is not None
        table, starts = self._cache.reopen(lease, copy.num_tokens)
        pages = [table.pages[g][start : table.length].tolist() for g, start in enumerate(starts)]
        places = [copy.pages[g][start - copy.first[g] :] for g, start in enumerate(starts)]
        self.num_pages_in += sum(map(len, pages))
        self._begin(seq, False, starts, pages, places)
        return table

    def _begin(
        self, seq: Sequence, to_host: bool, starts: list[int], pages: list[list[int]], places: list[list[int]]
    ) -> None:
        seq.moves = True
        entries = [
            _Entry(position, g, page, place)
            for g, start in enumerate(starts)
            for position, (page, place) in enumerate(zip(pages[g], places[g], strict=True), start)
        ]
        self._moves.append(_Move(seq, to_host, sorted(entries, reverse=True)))

    def take(self) -> list[Transfer]:
        """What to start with the next plan. What goes to the host goes first: others wait for its pages."""
        taken, room = [], self.pace.num_pieces
        for move in sorted(self._moves, key=lambda move: not move.to_host):
            while move.left and room:
                if move.begun or room < self._num_layers[move.left[0].group]:
                    transfer, num_pieces = self._cut_layers(move, room)
                else:
                    transfer, num_pieces = self._cut_pages(move, room)
                taken.append(transfer)
                room -= num_pieces
        return taken

    def _cut_pages(self, move: _Move, room: int) -> tuple[Transfer, int]:
        """A transfer of its next pages, and how many pieces they are."""
        until = list(accumulate(self._num_layers[entry.group] for entry in move.left[:room]))
        num = bisect_right(until, room)
        now, move.left = move.left[:num], move.left[num:]
        return self._begin_transfer(move, now), until[num - 1]

    def _cut_layers(self, move: _Move, room: int) -> tuple[Transfer, int]:
        """A transfer of the next layers of its next page, and how many."""
        entry, first = move.left[0], move.begun
        num = min(room, self._num_layers[entry.group] - first)
        move.begun += num
        if move.begun == self._num_layers[entry.group]:
            del move.left[0]
            move.begun = 0
        return self._begin_transfer(move, [entry], (first, first + num)), num

    def _begin_transfer(self, move: _Move, now: list[_Entry], layers: tuple[int, int] | None = None) -> Transfer:
        self._num += 1
        self._started.append(_Started(self._num, move, move.left[0].position + 1 if move.left else 0))
        by_group = [[entry for entry in now if entry.group == g] for g in range(len(self.host.num_pages))]
        pages, places = [[e.page for e in each] for each in by_group], [[e.place for e in each] for each in by_group]
        return Transfer(self._num, move.to_host, pages, places, layers)

    def complete(self, number: int, late: bool | None) -> list[Sequence]:
        """Sequences all of whose pages have arrived, now that all transfers up to `number` are complete.

        Pages that were copied to the host are given back. `late`: of the step that tells of it (`StepOutput.late`).
        """
        self.transferred = max(self.transferred, number)
        if late is not None:
            self.pace.hear(late, any(move.left for move in self._moves))
        done = []
        while self._started and self._started[0].number <= number:
            _, move, length = self._started.popleft()
            if move.to_host:
                assert move.seq.table is not None
                self._cache.shorten(move.seq.table, length)
            if length == 0:
                self._moves.remove(move)
                move.seq.moves = False
                done.append(move.seq)
        return done

    def give_up(self) -> list[Sequence]:
        """Forget all that is moved; returns its sequences. What was to come to the host is not there."""
        given_up, self._moves = self._moves, []
        self._started.clear()
        self.transferred = self._num  # so that other ranks, too, wait for what they started, before the next step
        for move in given_up:
            move.seq.moves = False
            if move.to_host:
                self.drop(move.seq)
        return [move.seq for move in given_up]

    def drop(self, seq: Sequence) -> None:
        """Give back a sequence's pages on the host, if it has any."""
        if seq.host is not None:
            self.host.give(seq.host.pages)
            seq.host = None
