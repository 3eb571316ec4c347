"""What the scheduler tells drafting, and what it makes of what devices foretell: steps worked out by hand."""

from __future__ import annotations

import numpy as np
from msgspec import structs

from core.clock import ManualClock
from core.engine.scheduler import Scheduler
from core.engine.step import StepOutput
from core.kv.cache import KVCache
from core.kv.groups import KVGroup
from core.model.pooling import Pooling
from core.request import Request
from core.speculate.drafting import Drafting, SequenceDrafts
from tests.core.engine.test_scheduler import request

HIDDEN = np.ones(2, "<f4").tobytes()


class Told(Drafting):
    """Drafting of ids that a device foretells, which notes what it is told."""

    def __init__(self) -> None:
        super().__init__(None, max_drafts=2)
        self.times: list[tuple[int, float, float]] = []
        self.gains: list[tuple[int, int]] = []
        self.learned: list[tuple[int, int]] = []
        self.together: list[int] = []

    def learn_time(self, num_tokens: int, seconds: float, foretelling_s: float) -> None:
        self.times.append((num_tokens, seconds, foretelling_s))
        super().learn_time(num_tokens, seconds, foretelling_s)

    def learn_gain(self, num_draws: int, num_emitted: int) -> None:
        self.gains.append((num_draws, num_emitted))
        super().learn_gain(num_draws, num_emitted)

    def learn(self, drafts: SequenceDrafts, num: int, num_right: int) -> None:
        self.learned.append((num, num_right))
        super().learn(drafts, num, num_right)

    def follow(self, drafts: SequenceDrafts, num: int) -> None:
        self.together.append(num)
        super().follow(drafts, num)


def make() -> tuple[Scheduler, Told, ManualClock]:
    """Steps of 8 tokens at most, pages of 2, and a KV group that draft layers fill."""
    drafting, clock = Told(), ManualClock(0.25)
    cache = KVCache([KVGroup(1, 1, 1), KVGroup(1, 1, 1, lookahead=1)], [40, 40], 2, True)
    scheduler = Scheduler(
        cache, max_tokens=8, max_seqs=4, max_model_len=78, spec=b"test", clock=clock, max_logits=12, drafting=drafting
    )
    return scheduler, drafting, clock


def embedding(number: int, prompt: list[int]) -> Request:
    return structs.replace(request(number, prompt, 0), pooling=Pooling("last", normalize=False))


def test_times_gains_and_what_came_of_drafts() -> None:
    scheduler, told, clock = make()
    scheduler.add(request(0, [1, 2, 3], 9))
    scheduler.add(request(1, [4], 9))
    plan = scheduler.schedule()
    assert (plan.counts, plan.drafts, plan.foretells) == ([3, 1], [], True)
    clock.advance(2.0)
    first = scheduler.update(StepOutput([5, 6], foretold=[[7, 8], [9]], foretelling_s=0.5))
    assert [output.new_ids for output in first] == [[5], [6]]
    assert [output.admitted_s for output in first] == [0.25, 0.25]
    assert told.times == [(4, 2.0, 0.5)]
    assert told.learned == [(0, 0), (0, 0)]
    assert told.gains == [], "not all of them decoded"

    plan = scheduler.schedule()
    assert (plan.counts, plan.drafts) == ([3, 2], [[7, 8], [9]])
    clock.advance(1.0)
    second = scheduler.update(StepOutput([7, 8, 1, 3, 0], accepted=[2, 0], foretelling_s=0.25))
    assert [output.new_ids for output in second] == [[7, 8, 1], [3]]
    assert [output.admitted_s for output in second] == [0.0, 0.0]
    assert told.times[1:] == [(5, 1.0, 0.25)]
    assert told.learned[2:] == [(2, 2), (1, 0)]
    assert told.gains == [(2, 4)]

    assert scheduler.schedule().drafts == [], "nothing was foretold, and the guesses before are no longer the next ones"
    clock.advance(1.0)
    scheduler.update(StepOutput([1, 1]))
    assert len(told.gains) == 1, "without foretelling there is nothing to gain"


def test_a_step_takes_no_longer_than_since_the_one_before() -> None:
    """Two in flight: the second stood behind the first. Then a pause, which is nobody's time."""
    scheduler, told, clock = make()
    scheduler.add(request(0, [1] * 20, 1))
    assert (scheduler.schedule().counts, scheduler.schedule().counts) == ([8], [8])
    clock.advance(2.0)
    scheduler.update(StepOutput([]))
    clock.advance(1.0)
    scheduler.update(StepOutput([]))
    clock.advance(7.0)
    assert scheduler.schedule().counts == [4]
    clock.advance(0.5)
    scheduler.update(StepOutput([3]))
    assert told.times == [(8, 2.0, 0.0), (8, 1.0, 0.0), (4, 0.5, 0.0)]


def test_steps_that_compiled_tell_nothing_of_time() -> None:
    scheduler, told, clock = make()
    scheduler.add(request(0, [1, 2, 3], 9))
    for token_id, compiled in ((5, False), (6, True), (7, False)):
        scheduler.schedule()
        clock.advance(2.0)
        scheduler.update(StepOutput([token_id], foretold=[[]], foretelling_s=0.5, compiled=compiled))
    assert told.times == [(3, 2.0, 0.5), (1, 2.0, 0.5)]
    assert told.gains == [(1, 1)]
    assert len(told.learned) == 3


def test_how_many_run_together_is_told() -> None:
    scheduler, told, _ = make()
    scheduler.add(request(0, [1], 9))
    scheduler.schedule()
    for number in range(1, 7):
        scheduler.add(request(number, [1], 9))
    scheduler.schedule()
    assert told.together == [1, 4, 4, 4], "no more than there is room for"


def test_embeddings_are_not_drafted() -> None:
    """Not even where they share a step, and a cache, with what is: what is foretold after one is nobody's."""
    scheduler, told, _ = make()
    scheduler.add(embedding(0, [1, 2, 3]))
    scheduler.add(request(1, [4], 9))
    assert scheduler.schedule().foretells
    assert told.together == [2]
    outputs = scheduler.update(StepOutput([0, 6], hidden=[HIDDEN], foretold=[[7, 8], [9]]))
    assert [output.embedding for output in outputs] == [HIDDEN, b""]
    assert told.learned == [(0, 0)]
    assert scheduler.schedule().drafts == [[9]]


def test_a_prefix_that_was_not_foretold_cannot_be_followed() -> None:
    """Draft layers have no entries of what an embedding put there: whoever goes on from that has no drafts."""
    scheduler, told, _ = make()
    for number in range(2):
        scheduler.add(embedding(number, [1, 2, 3]))
        assert scheduler.schedule().starts == [number * 2]
        scheduler.update(StepOutput([0], hidden=[HIDDEN]))
    scheduler.add(request(2, [1, 2, 3], 9))
    plan = scheduler.schedule()
    assert (plan.starts, plan.foretells) == ([2], False)
    assert told.together == []
    scheduler.update(StepOutput([5]))
    scheduler.abort("2")

    scheduler.add(request(3, [8, 2, 3], 9))
    assert scheduler.schedule().foretells
    scheduler.update(StepOutput([5], foretold=[[7, 8]]))
    scheduler.abort("3")
    scheduler.add(request(4, [8, 2, 3], 9))
    plan = scheduler.schedule()
    assert (plan.starts, plan.foretells) == ([2], True), "this page was foretold"


def test_who_comes_back_to_a_prefix_that_was_not_foretold_is_followed_no_more() -> None:
    scheduler, _, _ = make()
    scheduler.add(request(0, [1, 2, 3], 9))
    assert scheduler.schedule().foretells
    scheduler.update(StepOutput([5], foretold=[[7, 8]]))
    [seq] = scheduler.running
    scheduler._preempt(seq)
    page = scheduler.cache.indexes[1].find(seq.ahead[:32])
    assert page is not None
    scheduler.cache._skipped[1][page] = True  # as if another one had put it there, after the first was evicted
    plan = scheduler.schedule()
    assert (plan.starts, plan.foretells, plan.drafts) == ([2], False, [])
