"""The scheduler where a window group has fewer pages than a whole prompt, against the arithmetic device."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.engine.scheduler import Scheduler
from core.kv.cache import KVCache
from core.kv.groups import KVGroup
from tests.core.engine.test_scheduler import VOCAB, Arithmetic, check_accounts, request, run, solo


def make(depth: int, page: int, window: int, max_tokens: int, max_seqs: int) -> tuple[Scheduler, Arithmetic, int]:
    """A scheduler, its device, and the least number of pages that a window group may have."""
    groups = [KVGroup(1, 1, 1), KVGroup(1, 1, 1, retain=window)]
    step_tokens = max_tokens * (depth + 1)
    held = groups[1].pages_held(page, step_tokens)
    assert held is not None
    pages = [60, 2 * held + 1]
    cache = KVCache(groups, pages, page, prefix=True, step_tokens=step_tokens)
    limit = 59 * page
    scheduler = Scheduler(cache, max_tokens=max_tokens, max_seqs=max_seqs, max_model_len=limit, spec=b"test")
    return scheduler, Arithmetic(cache, pages, page, window), held


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    depth=st.sampled_from([0, 1]),
    page=st.sampled_from([1, 2, 3, 4]),
    window=st.integers(1, 9),
    max_tokens=st.integers(1, 8),
    max_seqs=st.integers(1, 5),
)
def test_long_prompts_in_small_window_pools(seed, depth, page, window, max_tokens, max_seqs):
    """Shared prefixes and preemption: every output is that of the request alone, and no sequence waits forever."""
    rng = random.Random(seed)
    scheduler, device, held = make(depth, page, window, max_tokens, max_seqs)
    limit = scheduler.max_model_len
    prefix = [rng.randrange(VOCAB) for _ in range(limit)]
    wanted = {}
    for i in range(rng.randrange(1, 7)):
        prompt = prefix[: rng.randrange(1, limit - 1)]
        n = rng.randrange(1, min(limit - len(prompt), 12) + 1)
        scheduler.add(request(i, prompt, n))
        wanted[str(i)] = solo(prompt, n, [])
    most = 0

    def watch() -> None:
        nonlocal most
        for seq in scheduler.running:
            assert seq.table is not None
            most = max(most, len(seq.table.held(1)))

    assert run(scheduler, device, depth, watch) == wanted
    assert most <= held
    check_accounts(scheduler)
    assert all(pool.num_used == 0 for pool in scheduler.cache.pools)


@pytest.mark.parametrize("depth", [0, 1])
def test_a_sequence_of_the_greatest_length_fits(depth):
    scheduler, device, _ = make(depth, page=2, window=5, max_tokens=4, max_seqs=2)
    prompt = [i % VOCAB for i in range(scheduler.max_model_len - 3)]
    for i in range(2):
        scheduler.add(request(i, prompt, 3))
    outputs = run(scheduler, device, depth)
    assert outputs == {str(i): solo(prompt, 3, []) for i in range(2)}
