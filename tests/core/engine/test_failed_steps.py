"""Steps that fail, and draws that are none: who ends, what is told of it, and that all others go on as if alone."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.engine.scheduler import Scheduler
from core.engine.sequence import Sequence, Status
from core.engine.step import StepOutput
from core.engine.swap import Pace
from core.request import Logprobs
from tests.core.engine.test_scheduler import VOCAB, Arithmetic, check_accounts, following, make, request, solo
from tests.core.speculate.oracle_drafter import oracle


class Failing:
    """An engine some of whose steps fail. `got`: ids by request; `ended`: why each ended."""

    def __init__(self, scheduler: Scheduler, device: Arithmetic, depth: int, rng: random.Random) -> None:
        self.scheduler, self.device, self.depth, self.rng = scheduler, device, depth, rng
        self.flights: deque[tuple[StepOutput, set[str]]] = deque()
        self.got: dict[str, list[int]] = {}
        self.ended: dict[str, str] = {}

    def turn(self, may_fail: float) -> None:
        plan = self.scheduler.schedule()
        check_accounts(self.scheduler)
        if not plan.is_empty:
            names = {seq.request.request_id for seq in self.scheduler.running if seq.row in plan.rows}
            self.flights.append((self.device.run(plan), names))
        if self.flights and self.rng.random() < may_fail:
            self.fail()
        elif self.flights and (plan.is_empty or len(self.flights) > self.depth):
            for out in self.scheduler.update(self.device.polled(self.flights.popleft()[0])):
                assert out.request_id not in self.ended, "output after the end"
                self.got.setdefault(out.request_id, []).extend(out.new_ids)
                if out.finish_reason:
                    self.ended[out.request_id] = out.finish_reason
        check_accounts(self.scheduler)

    def fail(self) -> None:
        in_flight = set().union(*(names for _, names in self.flights)) - self.ended.keys()
        seqs = [seq for seq in self.scheduler.sequences() if seq.request.request_id in in_flight]
        outputs = self.scheduler.fail("it broke")
        assert [(o.new_ids, o.finish_reason, o.error) for o in outputs] == [([], "error", "it broke")] * len(in_flight)
        assert {o.request_id for o in outputs} == in_flight
        assert all(seq.status is Status.FINISHED for seq in seqs)
        assert not self.scheduler.num_in_flight
        assert not self.scheduler.swaps.under_way, "nobody knows how far transfers came"
        self.ended.update(dict.fromkeys(in_flight, "error"))
        self.flights.clear()
        while self.device.under_way:
            self.device.finish_oldest()


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    depth=st.sampled_from([0, 1]),
    page=st.sampled_from([1, 2, 3]),
    num_pages=st.integers(12, 30),
    window=st.sampled_from([None, None, 3]),
    num_swap=st.sampled_from([0, 12, 60]),
    max_drafts=st.sampled_from([0, 0, 3]),
)
def test_random_failures_end_what_was_in_flight_and_nothing_else(
    seed, depth, page, num_pages, window, num_swap, max_drafts
):
    rng = random.Random(seed)
    scheduler, device = make(num_pages, page, depth, 8, 4, window, num_swap, max_drafts)
    limit = scheduler.max_model_len
    prefix = [rng.randrange(VOCAB) for _ in range(limit // 2)]
    wanted = {}
    for i in range(10):
        prompt = [*prefix[: rng.randrange(1, len(prefix) + 1)], rng.randrange(VOCAB)]
        num = rng.randrange(1, limit - len(prompt) + 1)
        scheduler.add(request(i, prompt, num))
        wanted[str(i)] = solo(prompt, num, [])
    engine = Failing(scheduler, device, depth, rng)
    turns = 0
    while scheduler.busy:
        turns += 1
        assert turns < 20_000, "livelock"
        engine.turn(may_fail=0.05)
    assert engine.ended.keys() == wanted.keys()
    for name, ids in wanted.items():
        got = engine.got.get(name, [])
        assert got == (ids[: len(got)] if engine.ended[name] == "error" else ids)
    scheduler.check_idle()


def swapping() -> tuple[Scheduler, Arithmetic, Sequence]:
    """Three sequences decode, and pages have run out: the last one has begun to go to the host, a page beside each
    step. The step in flight waits for the first page, and computes nothing."""
    scheduler, device = make(num_pages=13, page=1, max_tokens=12, max_seqs=3, num_swap=40)
    scheduler.swaps.pace = Pace(3)
    for i in range(3):
        scheduler.add(request(i, [i, 2, 3], 8))
    plan = scheduler.schedule()
    while not plan.waits:
        scheduler.update(device.run(plan))
        plan = scheduler.schedule()
    assert plan.transfers
    device.run(plan)
    [leaving] = scheduler._leaving
    return scheduler, device, leaving


def go_on(scheduler: Scheduler, device: Arithmetic) -> dict[str, list[int]]:
    """After a failure, to the end."""
    while device.under_way:
        device.finish_oldest()
    engine = Failing(scheduler, device, 0, random.Random(0))
    while scheduler.busy:
        engine.turn(may_fail=0)
    scheduler.check_idle()
    return engine.got


def test_what_was_on_its_way_to_the_host_is_queued_again_and_computed_anew() -> None:
    scheduler, device, leaving = swapping()
    known = {seq.request.request_id: seq.num_outputs for seq in scheduler.sequences()}
    assert scheduler.fail("it broke") == [], "nobody was computed"
    assert leaving.status is Status.WAITING
    assert leaving.host is None
    assert not scheduler._leaving
    assert go_on(scheduler, device) == {str(i): solo([i, 2, 3], 8, [])[known[str(i)] :] for i in range(3)}


def test_what_was_on_its_way_back_is_loaded_again() -> None:
    scheduler, device, leaving = swapping()
    scheduler.update(StepOutput([], transferred=device.transferred))
    for name in "01":
        scheduler.abort(name)
    scheduler.cache.prefix_caching = False
    while leaving.status is not Status.LOADING:
        output = device.run(scheduler.schedule())
        scheduler.update(StepOutput(output.ids, transferred=device.transferred))
    copy = leaving.host
    assert copy is not None
    assert scheduler.fail("it broke") == []
    assert leaving.status is Status.WAITING
    assert leaving.host is copy, "it is still there"
    assert not scheduler.running
    num = leaving.num_outputs
    assert go_on(scheduler, device) == {"2": solo([2, 2, 3], 8, [])[num:]}


def test_one_that_leaves_while_its_step_fails_has_left() -> None:
    """Preempted in flight: it ends, and neither its pages nor its place among those that leave are kept."""
    scheduler, _ = make(num_pages=40, page=1)
    scheduler.add(request(0, [1, 2], 4))
    scheduler.schedule()
    [seq] = scheduler.running
    scheduler._preempt(seq)
    assert seq in scheduler._leaving
    assert [output.finish_reason for output in scheduler.fail("it broke")] == ["error"]
    assert seq.status is Status.FINISHED
    assert not scheduler.busy
    scheduler.check_idle()


def test_a_step_that_was_late_slows_transfers() -> None:
    scheduler, _, _ = swapping()
    assert scheduler.swaps.pace.num_pieces == 3
    scheduler.update(StepOutput([], late=True))
    assert scheduler.swaps.pace.num_pieces == 1


def test_no_numbers_after_drafts_that_were_right() -> None:
    """What was drawn before is told, with its log-probabilities; then the error."""
    scheduler, _ = make(num_pages=40, page=1, max_drafts=3)
    scheduler.drafting = oracle(following, 1, spoil=0, fewer=0)
    scheduler.add(request(0, [1], 9))
    assert scheduler.schedule().drafts == [following([1], 1)]
    ids, reports = following([1], 3), [Logprobs(-0.5 - i, 1, [], []) for i in range(4)]
    outputs = scheduler.update(StepOutput(ids[:2], logprobs=reports[:2], accepted=[1]))
    assert [(o.new_ids, o.logprobs, o.finish_reason) for o in outputs] == [(ids[:2], reports[:2], None)]
    assert scheduler.schedule().drafts == [ids[2:]]
    outputs = scheduler.update(StepOutput([ids[2], -1], logprobs=reports[2:], accepted=[1]))
    assert [(o.new_ids, o.logprobs, o.finish_reason) for o in outputs] == [
        (ids[2:], reports[2:3], None),
        ([], [], "error"),
    ]
    assert not scheduler.busy
    scheduler.check_idle()


@pytest.mark.parametrize(("drawn", "found"), [(-1, 0), (5, 3)])
def test_entries_that_gave_no_numbers_are_not_found(drawn: int, found: int) -> None:
    scheduler, _ = make(num_pages=40, page=1)
    scheduler.add(request(0, [1, 2, 3, 4], 1))
    scheduler.schedule()
    scheduler.update(StepOutput([drawn]))
    scheduler.add(request(1, [1, 2, 3, 4], 1))
    assert scheduler.schedule().starts == [found]


def test_two_come_back_from_the_host_at_once() -> None:
    scheduler, device = make(num_pages=40, page=1, max_tokens=12, num_swap=40)
    scheduler.cache.prefix_caching = False
    for i in range(2):
        scheduler.add(request(i, [i, 2, 3], 8))
    scheduler.update(device.run(scheduler.schedule()))
    for seq in list(scheduler.running):
        scheduler._preempt(seq)
    while any(seq.status is Status.PREEMPTED for seq in scheduler.sequences()):
        plan = scheduler.schedule()
        if plan.transfers:
            device.run(plan)
            while device.under_way:
                device.finish_oldest()
        scheduler.update(StepOutput([], transferred=device.transferred))
    scheduler.schedule()
    assert [seq.status for seq in scheduler.running] == [Status.LOADING] * 2
