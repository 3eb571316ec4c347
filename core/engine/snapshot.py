"""What an engine holds at one moment, for people: pages, hit rates, sequences. Plain data; changes nothing."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import msgspec

from core.speculate.drafting import DraftCounts

if TYPE_CHECKING:  # clients read snapshots and need no scheduler
    from core.engine.compiled import Compiles
    from core.engine.scheduler import Scheduler
    from core.engine.sequence import Sequence

MAX_SEQUENCES = 1000


class GroupSnapshot(msgspec.Struct, frozen=True):
    """One KV group: num_pages = free + cached + used, the null page left out.

    retain     tokens that its layers see; None: all
    num_keys   pages that can be found again
    num_host_pages, num_host_used   for preempted sequences
    """

    retain: int | None
    num_pages: int
    num_free: int
    num_cached: int
    num_used: int
    num_keys: int
    num_host_pages: int
    num_host_used: int


class SequenceSnapshot(msgspec.Struct, frozen=True):
    """One request. Lengths in tokens; `num_pages` that it holds, per group."""

    request_id: str
    status: str
    num_prompt: int
    num_tokens: int
    num_computed: int
    num_cached: int
    num_pages: list[int]


class Snapshot(msgspec.Struct, frozen=True):
    """The engine's own account. Counts of steps, preemptions and prefixes are since its start.

    num_step_tokens      tokens computed in all steps
    num_steps_by_tokens  steps of up to so many tokens, for each of `core.engine.step_sizes.BOUNDS`; then larger ones
    num_on_host          sequences that are on the host, or on their way there or back
    num_swapped          preemptions after which the entries are on the host; others are computed again if more is to do
    num_swaps_refused    of these, for want of room on the host
    num_pages_swapped_out, num_pages_swapped_in   of all groups
    num_prefix_queries   prompt tokens that were looked for in the cache
    num_prefix_hits      those of them that were found
    num_compiles         functions that the device compiled, in compile_s; num_late_compiles: after the warm-up
    num_drafts           draws that came with drafts; num_draft_tokens: these; num_accepted_tokens: the right ones;
                         num_accepted_at: by place among the drafts of a draw; empty: nothing drafts
    num_foretelling_steps   in which draft layers foretold ids, in foretelling_s
    sequences            running ones first, then in order of admission; perhaps not all
    """

    page_tokens: int
    prefix_caching: bool
    num_running: int
    num_waiting: int
    num_in_flight: int
    num_steps: int
    num_step_tokens: int
    num_steps_by_tokens: list[int]
    num_preemptions: int
    num_on_host: int
    num_swapped: int
    num_swaps_refused: int
    num_pages_swapped_out: int
    num_pages_swapped_in: int
    num_prefix_queries: int
    num_prefix_hits: int
    num_compiles: int
    compile_s: float
    num_late_compiles: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_at: list[int]
    num_foretelling_steps: int
    foretelling_s: float
    groups: list[GroupSnapshot]
    sequences: list[SequenceSnapshot]


def take_snapshot(scheduler: Scheduler, compiles: Compiles, max_sequences: int) -> Snapshot:
    """With at most so many sequences."""
    cache, swaps, running = scheduler.cache, scheduler.swaps, set(scheduler.running)
    drafted = scheduler.drafting.counts if scheduler.drafting else DraftCounts([], [])
    first = heapq.nsmallest(max_sequences, scheduler.sequences(), key=lambda seq: (seq not in running, seq.order))
    groups = [
        GroupSnapshot(
            retain=group.retain,
            num_pages=pool.num_pages - 1,
            num_free=pool.num_free,
            num_cached=pool.num_cached,
            num_used=pool.num_used,
            num_keys=len(index),
            num_host_pages=swaps.host.num_pages[g],
            num_host_used=swaps.host.num_used(g),
        )
        for g, (group, pool, index) in enumerate(zip(cache.groups, cache.pools, cache.indexes, strict=True))
    ]
    return Snapshot(
        page_tokens=cache.page_tokens,
        prefix_caching=cache.prefix_caching,
        num_running=len(scheduler.running),
        num_waiting=scheduler.num_waiting,
        num_in_flight=scheduler.num_in_flight,
        num_steps=scheduler.num_steps,
        num_step_tokens=scheduler.step_sizes.num_tokens,
        num_steps_by_tokens=list(scheduler.step_sizes.num_steps),
        num_preemptions=scheduler.num_preemptions,
        num_on_host=sum(seq.host is not None for seq in scheduler.sequences()),
        num_swapped=swaps.num_out,
        num_swaps_refused=swaps.num_refused,
        num_pages_swapped_out=swaps.num_pages_out,
        num_pages_swapped_in=swaps.num_pages_in,
        num_prefix_queries=scheduler.num_prefix_queries,
        num_prefix_hits=scheduler.num_prefix_hits,
        num_compiles=compiles.num,
        compile_s=compiles.seconds,
        num_late_compiles=compiles.num_late,
        num_drafts=drafted.num_drafts,
        num_draft_tokens=drafted.num_tokens,
        num_accepted_tokens=sum(drafted.num_accepted_at),
        num_accepted_at=list(drafted.num_accepted_at),
        num_foretelling_steps=drafted.num_foretelling,
        foretelling_s=drafted.foretelling_s,
        groups=groups,
        sequences=[_sequence(seq, len(groups)) for seq in first],
    )


def _sequence(seq: Sequence, num_groups: int) -> SequenceSnapshot:
    table = seq.table
    return SequenceSnapshot(
        request_id=seq.request.request_id,
        status=seq.status.value,
        num_prompt=len(seq.request.prompt_ids),
        num_tokens=len(seq.token_ids),
        num_computed=seq.num_computed,
        num_cached=seq.num_cached or 0,
        num_pages=[len(table.held(g)) if table else 0 for g in range(num_groups)],
    )
