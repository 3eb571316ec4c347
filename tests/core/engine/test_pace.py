"""How much is swapped beside a step, and what becomes free meanwhile."""

from __future__ import annotations

import pytest

from core.engine.swap import Pace
from tests.core.engine.test_swap_faults import preempted


@pytest.mark.parametrize("fits", [1, 5, 40, 300])
def test_as_many_pieces_as_a_step_takes_the_time_of(fits: int) -> None:
    pace = Pace(8)
    for turn in range(200):
        pace.hear(late=pace.num_pieces > fits, more=True)
        if turn > 40:
            assert fits * 0.7 - 1 <= pace.num_pieces <= fits * 1.2 + 1


def test_no_more_without_more_to_copy() -> None:
    pace = Pace(8)
    before = pace.num_pieces
    pace.hear(late=False, more=False)
    assert pace.num_pieces == before


def test_pages_come_free_as_they_arrive_on_the_host() -> None:
    """Piece by piece, the last ones first; the sequence is back in the queue when all have."""
    scheduler, device, plan = preempted(1)
    [leaving] = scheduler._leaving
    assert leaving.table is not None
    left = leaving.table.length
    while left:
        assert [len(transfer.pages[0]) for transfer in plan.transfers] == [1]
        assert plan.transfers[0].pages[0] == [leaving.table.pages[0][left - 1]]
        output = device.run(plan)
        if not plan.waits:
            device.finish_oldest()
        output = type(output)(output.ids, transferred=device.transferred)
        scheduler.update(output)
        left -= 1
        if left:
            assert leaving.table.length == left
        plan = scheduler.schedule()
    assert leaving not in scheduler._leaving
    assert leaving.host is not None
