"""The books of a cache that nobody uses: whenever the engine is idle, everything must be back.

A page, a row or a key that is lost shows here at once, and not as a cache that shrinks over days. Sizes are compared,
not contents: the check costs tens of microseconds, and runs only when the last request has ended.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from core.kv.cache import KVCache
from core.kv.host import HostPool
from core.kv.pool import VALID


class AccountsError(RuntimeError):
    """Something was lost, or given back twice: a defect of ours, after which the cache cannot be trusted."""


def check_idle(
    cache: KVCache, host: HostPool, rows: Sequence[int], num_rows: int, num_leaving: int, num_changes: int
) -> None:
    """Everything is back, now that nothing is queued, running or in flight.

    rows          that are free, of 1 .. num_rows
    num_leaving   sequences that still wait for a step in flight, or for a transfer
    num_changes   edits and draws to be told to devices, of rows that nobody has any more

    Raises: AccountsError naming every sum that is wrong.
    """
    wrong = []
    if len(rows) != num_rows or len(set(rows)) != num_rows:
        wrong.append(f"rows: {len(set(rows))} of {num_rows} are back, in a list of {len(rows)}")
    if num_leaving:
        wrong.append(f"sequences: {num_leaving} wait for a step or a transfer, and none is under way")
    if num_changes:
        wrong.append(f"changes: {num_changes} are pending for rows that nobody has")
    for g in range(len(cache.pools)):
        wrong += _wrong_in_group(cache, g)
    for g, (num, free) in enumerate(zip(host.num_pages, host.free, strict=True)):
        if len(free) != num:
            wrong.append(f"group {g}: {len(free)} pages on the host are free, of {num}")
    if wrong:
        raise AccountsError(
            f"the engine is idle and its accounts do not balance: {'; '.join(wrong)}; "
            "this is a defect of the engine: start it again, and report it"
        )


def _wrong_in_group(cache: KVCache, g: int) -> list[str]:
    pool, num_keys = cache.pools[g], len(cache.indexes[g])
    total = pool.num_pages - 1
    num_valid = int(np.count_nonzero(pool.state == VALID))
    wrong = []
    if pool.num_free + pool.num_cached != total:
        wrong.append(f"group {g}: {pool.num_free} free + {pool.num_cached} cached pages are not all {total}")
    if num_valid != pool.num_cached:
        wrong.append(f"group {g}: {num_valid} pages are valid and {pool.num_cached} are counted as cached")
    if num_valid != num_keys:
        wrong.append(f"group {g}: {num_valid} pages are valid and the index has {num_keys} keys")
    return wrong
