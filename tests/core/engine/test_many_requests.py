"""Thousands of requests on a tiny pool, a third of them aborted: nothing is lost, and survivors are as if alone."""

from __future__ import annotations

import random
from collections import deque

import pytest

from core.engine.step import StepOutput
from tests.core.engine.test_scheduler import VOCAB, check_accounts, make, request, solo


@pytest.mark.parametrize(
    ("depth", "num_swap", "num_requests", "max_drafts"),
    [
        pytest.param(0, 0, 10_000, 0, marks=pytest.mark.heavy),
        pytest.param(1, 0, 10_000, 0, marks=pytest.mark.heavy),
        (1, 0, 2000, 0),
        (0, 15, 3000, 0),
        pytest.param(1, 15, 3000, 0, marks=pytest.mark.heavy),
        pytest.param(0, 0, 3000, 3, marks=pytest.mark.heavy),
        (1, 15, 3000, 8),
    ],
)
def test_thousands_of_requests(depth: int, num_swap: int, num_requests: int, max_drafts: int) -> None:
    rng = random.Random(depth)
    scheduler, device = make(
        num_pages=40, page=2, depth=depth, max_tokens=24, max_seqs=8, window=6, num_swap=num_swap, max_drafts=max_drafts
    )
    prefixes = [[rng.randrange(VOCAB) for _ in range(24)] for _ in range(6)]
    asked: dict[str, tuple[list[int], int, list[int]]] = {}
    got: dict[str, list[int]] = {}
    doomed: set[str] = set()
    aborted: set[str] = set()
    flights: deque[StepOutput] = deque()
    added = 0
    while added < num_requests or scheduler.busy:
        while added < num_requests and len(asked) - len(got) < 24 and rng.random() < 0.9:
            prompt = rng.choice(prefixes)[: rng.randrange(1, 25)] + [rng.randrange(VOCAB)] * rng.randrange(3)
            stops = [rng.randrange(VOCAB)] if rng.random() < 0.3 else []
            key, num = str(added), rng.randrange(1, 12)
            asked[key] = (prompt, num, stops)
            scheduler.add(request(added, prompt, num, stops, rng.randrange(2)))
            if rng.random() < 1 / 3:
                doomed.add(key)
            added += 1
        alive = [s.request.request_id for s in scheduler.sequences() if s.request.request_id in doomed]
        if alive and rng.random() < 0.5:
            victim = rng.choice(alive)
            assert scheduler.abort(victim) is not None
            aborted.add(victim)
            got.setdefault(victim, [])
        plan = scheduler.schedule()
        if not plan.is_empty:
            flights.append(device.run(plan))
        if flights and (plan.is_empty or len(flights) > depth):
            for out in scheduler.update(device.polled(flights.popleft())):
                got.setdefault(out.request_id, []).extend(out.new_ids)
    check_accounts(scheduler)
    scheduler.check_idle()
    assert scheduler.num_preemptions > 100
    if scheduler.drafting:
        assert all(scheduler.drafting.counts.num_accepted_at)
    swaps = scheduler.swaps
    assert (swaps.num_out > 100, swaps.num_pages_in > 1000, swaps.num_refused > 1) == (num_swap > 0,) * 3
    assert len(aborted) > num_requests // 8
    for pool in scheduler.cache.pools:
        assert pool.num_free + pool.num_cached == pool.num_pages - 1
    for key, (prompt, num, stops) in asked.items():
        wanted = solo(prompt, num, stops)
        assert got[key] == (wanted[: len(got[key])] if key in aborted else wanted)
