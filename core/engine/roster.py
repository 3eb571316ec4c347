"""Every sequence that has not ended: those that wait, those that run, and those that leave.

A sequence that leaves (finished or preempted) keeps its pages and its row until nothing of it is in flight; one that is
preempted then goes to the host, if it has room there, and back to the queue. Owns rows, and what devices have yet to be
told of them; refuses requests that can never be served.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence as Sequences

from core.engine.grammar import Matcher
from core.engine.sequence import Sequence, Status, check_length
from core.engine.swap import Swaps
from core.errors import RequestError
from core.kv.accounts import check_idle
from core.kv.cache import KVCache
from core.kv.prefix import root_key
from core.request import Request, SequenceOutput


class Roster:
    """Owns every sequence, from `add` until its last output. See `Scheduler` for what it is made of."""

    def __init__(
        self, cache: KVCache, *, max_seqs: int, max_model_len: int, spec: bytes, num_swap_pages: Sequences[int]
    ) -> None:
        self.cache, self.spec = cache, spec
        self.max_seqs, self.max_model_len = max_seqs, max_model_len
        self.swaps = Swaps(cache, num_swap_pages)
        self.num_preemptions = 0
        self.running: list[Sequence] = []  # in order: the last one is the first to be preempted
        self._waiting: list[Sequence] = []  # a heap, in the same order
        self._by_id: dict[str, Sequence] = {}
        self._leaving: set[Sequence] = set()
        self._rows = list(range(max_seqs, 0, -1))
        self._edits: list[tuple[int, int, int, int]] = []

    @property
    def num_waiting(self) -> int:
        return len(self._by_id) - len(self.running)

    def sequences(self) -> list[Sequence]:
        """Every sequence that has not ended, in no order."""
        return list(self._by_id.values())

    def add(self, request: Request) -> None:
        """Queue a request; one with a grammar waits for `loaded`. Raises: RequestError when it can never be served."""
        check_length(request, self.max_model_len)
        if request.request_id in self._by_id:
            raise RequestError(f"request id {request.request_id!r} is in use: choose another", "request_id")
        root = root_key(self.spec, request.cache_salt, request.kv_provenance)
        seq = Sequence(request, root, list(request.prompt_ids), request.prefix_keys)
        self._by_id[request.request_id] = seq
        if request.structured is not None:
            seq.status = Status.LOADING
        else:
            heapq.heappush(self._waiting, seq)

    def loaded(self, request_id: str, matcher: Matcher) -> None:
        """Queue a request that waited for its grammar."""
        seq = self._by_id[request_id]
        seq.status, seq.matcher = Status.WAITING, matcher
        heapq.heappush(self._waiting, seq)

    def abort(self, request_id: str) -> SequenceOutput | None:
        """End a request now. None when it has ended already."""
        seq = self._by_id.get(request_id)
        if seq is None:
            return None
        self._finish(seq)
        return SequenceOutput(request_id, [], "abort")

    def _preempt(self, seq: Sequence) -> None:
        """Take everything from a running sequence; it goes on later, from what the prefix cache and the host have."""
        self.num_preemptions += 1
        if seq.host is not None:
            self.swaps.num_out += 1  # again, while it came back: its entries are still there
        self._leave(seq, Status.PREEMPTED)

    def _finish(self, seq: Sequence) -> None:
        del self._by_id[seq.request.request_id]
        if seq.row and seq not in self._leaving:
            self._leave(seq, Status.FINISHED)
            return
        seq.status = Status.FINISHED  # waiting: dropped when its turn comes; leaving: freed when retired
        if seq not in self._leaving:
            self.swaps.drop(seq)

    def _leave(self, seq: Sequence, status: Status) -> None:
        self.running.remove(seq)
        seq.status = status
        if seq.num_scheduled or seq.moves:
            self._leaving.add(seq)
        else:
            self._vacate(seq)

    def _vacate(self, seq: Sequence, swap: bool = True) -> None:
        """Give back pages and row; a preempted sequence goes back to the queue, if it may by way of the host."""
        assert seq.table is not None
        assert not seq.num_scheduled
        if seq.row:
            self._rows.append(seq.row)
            self._edits = [edit for edit in self._edits if edit[0] != seq.row]
            seq.row = 0
        preempted = seq.status is Status.PREEMPTED
        if preempted and swap and seq.host is None and self.swaps.begin_out(seq):
            self._leaving.add(seq)  # until it has arrived there
            return
        self.cache.close(seq.table)
        seq.table, seq.num_computed = None, 0
        if not preempted:
            self.swaps.drop(seq)
            return
        if seq.host is None:
            seq.prompt_logprobs = []  # computed anew with the prompt
        seq.status = Status.WAITING
        heapq.heappush(self._waiting, seq)

    def check_idle(self) -> None:
        """Raises: AccountsError when anything is not back although nothing is queued, running or under way."""
        check_idle(self.cache, self.swaps.host, self._rows, self.max_seqs, len(self._leaving), len(self._edits))
