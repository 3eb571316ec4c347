"""Which tokens of which sequences the next step computes.

There are no phases. Each sequence has known tokens and computed ones, and every step lets the computed catch up with
the known under a token budget. A long prompt in chunks, a prefix found in the cache, a preempted sequence that starts
over, one token more after each draw: all are that one case.

Steps may be in flight: `schedule` is called again before `update` has told what the last step drew. Tokens in flight
count as computed, ids to be drawn as known; the runner reads such an id from the device. What follows:
- a sequence that stops has perhaps been scheduled once more; that draw is thrown away;
- pages of sequences that leave (`core.engine.roster`) come free later: these coming pages are counted before anyone
  else is preempted for want of pages;
- an empty plan while a step is in flight means: retire that step first.

A sequence may compute drafts, ids that were guessed (`core.speculate.drafting`), together with its last known id. They
get what everyone else left of a step: tokens, logit rows, free pages. They count as computed once they are found right,
and nothing else of the sequence is scheduled until then. Entries of wrong ones are written over by what comes instead.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from collections.abc import Sequence as Sequences
from typing import NamedTuple

import msgspec

from core.clock import SYSTEM, Clock
from core.engine.batch import Batch, Item, add_drafts, retire
from core.engine.roster import Roster
from core.engine.sequence import Sequence, Status
from core.engine.step import StepOutput, StepPlan
from core.engine.step_sizes import StepSizes
from core.kv.cache import KVCache, Lease
from core.request import Logprobs, SequenceOutput
from core.speculate.drafting import Drafting


class Flight(NamedTuple):
    """A step that is under way."""

    items: list[Item]
    num_tokens: int
    start_s: float


class Scheduler(Roster):
    """Plans what the sequences of a roster compute.

    max_tokens    tokens in a step, at most
    max_seqs      sequences that run at a time, at most; also rows (1 .. max_seqs)
    max_logits    logit rows in a step, at most; None: as many as sequences
    max_model_len prompt and output together, at most
    spec          identity of the cache's content (`core.kv.prefix.spec_digest`)
    clock         when sequences are admitted, for outputs to tell
    num_swap_pages   on the host, per KV group
    drafting      what drafts; None: nothing does
    """

    def __init__(
        self,
        cache: KVCache,
        *,
        max_tokens: int,
        max_seqs: int,
        max_model_len: int,
        spec: bytes,
        clock: Clock = SYSTEM,
        num_swap_pages: Sequences[int] = (),
        max_logits: int | None = None,
        drafting: Drafting | None = None,
    ) -> None:
        super().__init__(
            cache, max_seqs=max_seqs, max_model_len=max_model_len, spec=spec, num_swap_pages=num_swap_pages
        )
        self.max_tokens, self._clock = max_tokens, clock
        self.max_logits, self.drafting = max_logits or max_seqs, drafting
        self.num_steps = 0
        self.step_sizes = StepSizes()
        self.num_prefix_queries = self.num_prefix_hits = 0  # tokens, of the first admission of each request
        self._flights: deque[Flight] = deque()
        self._updated_s = 0.0
        self.masked: list[Item] = []  # of the plan made last: those whose draws wait for masks

    @property
    def num_in_flight(self) -> int:
        """Steps scheduled and not yet retired."""
        return len(self._flights)

    @property
    def busy(self) -> bool:
        """Whether there is anything to schedule, to retire or to transfer."""
        return bool(self._by_id or self._flights or self.swaps.under_way)

    def fail(self, message: str) -> list[SequenceOutput]:
        """End every sequence of the steps in flight with an error: what they computed is not known."""
        seqs = {item.seq for flight in self._flights for item in flight.items}
        self._flights.clear()
        outputs = []
        for seq in sorted(seqs):
            seq.num_scheduled = seq.num_pending = 0
            if seq.status is not Status.FINISHED:
                outputs.append(SequenceOutput(seq.request.request_id, [], "error", error=message))
                self._by_id.pop(seq.request.request_id)
                if seq.status is Status.RUNNING:
                    self.running.remove(seq)
                seq.status = Status.FINISHED
            self._leaving.discard(seq)
            self._vacate(seq)
        for seq in self.swaps.give_up():
            if seq.status is Status.LOADING:
                self.running.remove(seq)
                seq.status = Status.PREEMPTED
            self._leaving.discard(seq)
            self._vacate(seq, swap=False)
        return outputs

    def schedule(self) -> StepPlan:
        """Plan the next step. Empty when nothing can run before a step in flight retires."""
        batch = Batch(self.max_tokens, self.max_logits)
        room = self._continue_running(batch)
        if room:
            self._admit_waiting(batch)
        if self.drafting:
            self._edits += add_drafts(batch, self.drafting, self.cache, room)
        transfers = self.swaps.take() if batch.items or not self._flights else []
        plan = batch.plan(self._edits, transfers, self.swaps.transferred)
        if not plan.rows and not self._flights and self.swaps.under_way:
            plan = msgspec.structs.replace(plan, waits=True)
        if not plan.is_empty:
            self._edits = []
            self._flights.append(Flight(batch.items, plan.num_tokens, self._clock.now_s()))
        if plan.rows:
            self.num_steps += 1
            self.step_sizes.add(batch.num_tokens)
        self.masked = batch.masked
        stuck = plan.is_empty and not self._flights
        assert not stuck or all(seq.status is Status.LOADING for seq in self.sequences()), "nothing can run"
        return plan

    def _continue_running(self, batch: Batch) -> bool:
        """Give running sequences their tokens. False when pages ran short: then nobody new is admitted."""
        room = True
        position = 0
        while position < len(self.running) and not batch.full:
            seq = self.running[position]
            # Each sequence after this one can still get a token in this step.
            spare = batch.budget - (len(self.running) - position - 1)
            count = min(seq.num_todo, max(1, spare), batch.room_for(seq))
            if count > 0:
                start, table = seq.frontier, seq.table
                assert table is not None
                # Once pages ran short, what comes free belongs to the sequence that ran short.
                if start + count <= table.capacity or (room and self._make_room(seq, start + count)):
                    batch.add(seq, start, count)
                else:
                    room = False
            if seq.status in (Status.RUNNING, Status.LOADING):
                position += 1
        return room

    def _make_room(self, seq: Sequence, num_tokens: int) -> bool:
        """Have pages for `num_tokens` tokens, preempting those after `seq`. False: it must wait, or was preempted."""
        assert seq.table is not None
        missing = self.cache.missing(seq.table, num_tokens)
        while not self.cache.can_take(missing):
            if self._can_take_soon(missing):
                return False
            victim = self.running[-1]
            self._preempt(victim)
            if victim is seq:
                return False
        self._edits += [(seq.row, *edit) for edit in self.cache.grow(seq.table, num_tokens)]
        return True

    def _can_take_soon(self, num_pages: int) -> bool:
        """Whether pages of leaving sequences will suffice, once steps in flight have retired and transfers are done."""
        tables = [seq.table for seq in self._leaving if seq.table is not None]
        return bool(tables) and self.cache.can_take_after(tables, num_pages)

    def _admit_waiting(self, batch: Batch) -> None:
        while self._waiting and self._rows and not batch.full:
            seq = self._waiting[0]
            if seq.status is Status.FINISHED:
                heapq.heappop(self._waiting)
                continue
            if self.cache.prefix_caching:
                seq.extend_keys(len(seq.token_ids), self.cache.page_tokens, self.cache.lookahead)
            # Log-probabilities of a prompt need its logits, so it is computed even where its entries are cached.
            most = 0 if seq.request.prompt_logprobs >= 0 and not seq.num_outputs else len(seq.token_ids) - 1
            lease = self.cache.lease(seq.keys, most, seq.ahead)
            total = self.cache.pages_for(len(seq.token_ids))
            # The whole sequence must fit: a chunk that gets in alone is preempted by the next one.
            if not self.cache.can_take(total - lease.num_tokens // self.cache.page_tokens):
                self.cache.cancel(lease)
                return
            heapq.heappop(self._waiting)
            if self.drafting and not seq.drafter and not seq.embeds:
                seq.drafter = self.drafting.open(seq.token_ids)
            if seq.drafter and not lease.foretold:
                seq.drafter.followed = False
            if seq.host is not None and lease.num_tokens < seq.host.num_tokens:
                self._load(seq, lease, batch)
                continue
            self.swaps.drop(seq)
            if self.drafting and seq.drafter and lease.foretold:
                self.drafting.follow(seq.drafter, min(len(self._by_id), self.max_seqs))
            seq.table = self.cache.open(lease)
            seq.num_computed = lease.num_tokens
            if seq.num_cached is None:
                seq.num_cached, seq.admitted_s = lease.num_tokens, self._clock.now_s()
                self.num_prefix_queries += most
                self.num_prefix_hits += lease.num_tokens
            self._start(seq, batch)

    def _load(self, seq: Sequence, lease: Lease, batch: Batch) -> None:
        """Let a swapped sequence come back from the host: it runs once all of it has arrived."""
        assert seq.host is not None
        seq.table, seq.num_computed = self.swaps.begin_in(seq, lease), seq.host.num_tokens
        seq.status, seq.row = Status.LOADING, self._rows.pop()
        insort(self.running, seq)
        batch.new.append(seq.for_devices())

    def _start(self, seq: Sequence, batch: Batch) -> None:
        seq.status, seq.row = Status.RUNNING, self._rows.pop()
        insort(self.running, seq)
        assert seq.table is not None
        count = min(seq.num_todo, batch.room_for(seq))
        self.cache.grow(seq.table, seq.frontier + count)
        batch.new.append(seq.for_devices())
        batch.add(seq, seq.frontier, count)

    def update(self, output: StepOutput) -> list[SequenceOutput]:
        """Retire the oldest step in flight with what it drew."""
        outputs = []
        flight, num_drawn = self._flights.popleft(), 0
        took_s = self._took_s(flight)
        for item, drawn, logprobs, foretold in retire(flight.items, output):
            seq = item.seq
            num_drawn += len(drawn)
            if self.drafting and seq.drafter and drawn:
                self.drafting.learn(seq.drafter, item.num_draws - 1, len(drawn) - 1)
            if seq.status is not Status.FINISHED:
                outputs += self._advance(seq, drawn, logprobs)
            if seq.drafter and foretold:
                seq.drafter.hear(foretold)
            if seq in self._leaving and not seq.num_scheduled:
                self._leaving.remove(seq)
                self._vacate(seq)
        if self.drafting and flight.num_tokens and not output.compiled:
            drafting, decodes = self.drafting, all(item.samples and item.num_tokens == 1 for item in flight.items)
            drafting.learn_time(flight.num_tokens, took_s, output.foretelling_s)
            if output.foretelling_s and decodes:
                drafting.learn_gain(len(flight.items), num_drawn)
        for seq in self.swaps.complete(output.transferred, output.late):
            if seq in self._leaving:
                self._leaving.remove(seq)
                self._vacate(seq)
            else:
                self.swaps.drop(seq)
                seq.status = Status.RUNNING
        return outputs

    def _took_s(self, flight: Flight) -> float:
        """How long a step that has ended took, but for the time that it stood behind another one."""
        start_s, self._updated_s = max(flight.start_s, self._updated_s), self._clock.now_s()
        return self._updated_s - start_s

    def _advance(self, seq: Sequence, drawn: list[int], logprobs: list[Logprobs]) -> list[SequenceOutput]:
        """Take in one retired item of a live sequence."""
        num, reason = seq.take_all(drawn)
        if reason != "error":  # logits that are not numbers come from entries that nobody shall find
            self._commit(seq)
        if not drawn:
            return []
        outputs = []
        if reason == "error" and num > 1:
            outputs.append(seq.output(drawn[: num - 1], logprobs[: num - 1], None))
        # Before the sequence gives up what it has.
        outputs.append(seq.output(drawn[:num], logprobs[:num], reason))
        if reason:
            self._finish(seq)
        return outputs

    def _commit(self, seq: Sequence) -> None:
        """Make pages that are complete findable, and drop those that no later token sees."""
        table = seq.table
        assert table is not None
        num_pages = seq.num_computed // self.cache.page_tokens
        if self.cache.prefix_caching and num_pages > table.committed:
            seq.extend_keys(num_pages * self.cache.page_tokens, self.cache.page_tokens, self.cache.lookahead)
            foretold = seq.drafter is not None and seq.drafter.followed
            edits = self.cache.commit(table, seq.keys, num_pages, seq.token_ids, ahead=seq.ahead, foretold=foretold)
            self._edits += [(seq.row, *edit) for edit in edits]
        if self.cache.windowed:
            self.cache.trim(table, seq.num_computed)
