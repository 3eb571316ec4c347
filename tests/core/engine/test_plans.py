"""What the scheduler plans, worked out by hand: who gets how much of a step, who waits, who is preempted.

`test_scheduler.py` shows that outputs are right whatever is planned; here it is the plans themselves.
"""

from __future__ import annotations

import pytest
from msgspec import structs

from core.engine.guidance import GuidanceCompiler
from core.engine.scheduler import Scheduler
from core.engine.sequence import Sequence, Status
from core.engine.step import StepOutput, StepPlan
from core.engine.swap import Pace
from core.kv.cache import KVCache
from core.kv.events import BlockStored, KVEvents
from core.kv.groups import KVGroup
from core.request import Logprobs, Request, Structured
from tests.core.engine.grammars import EOS
from tests.core.engine.test_scheduler import Arithmetic, following, make, request, run, solo
from tests.core.speculate.oracle_drafter import oracle

SCORE = Logprobs(-1.0, 1, [], [])


def step(scheduler: Scheduler, device: Arithmetic) -> StepPlan:
    """Plan a step, run it, retire it."""
    plan = scheduler.schedule()
    scheduler.update(device.run(plan))
    return plan


def named(scheduler: Scheduler, name: str) -> Sequence:
    [seq] = [seq for seq in scheduler.sequences() if seq.request.request_id == name]
    return seq


def scored(plan: StepPlan, output: StepOutput, num_prompt: int) -> StepOutput:
    """With log-probabilities of each prompt token that follows a scoring one; the plan has one item."""
    [start], [count], [wanted] = plan.starts, plan.counts, plan.scores
    scores = [[SCORE] * (min(start + count, num_prompt - 1) - start)] if wanted else []
    return structs.replace(output, prompt_logprobs=scores)


def decoding(scheduler: Scheduler, device: Arithmetic, *numbers: int, max_tokens: int = 20) -> None:
    """Have these requests, of one token each, run and decode."""
    for number in numbers:
        scheduler.add(request(number, [number], max_tokens))
    step(scheduler, device)


# Who gets how much of a step


def test_a_long_prompt_leaves_a_token_for_each_after_it() -> None:
    scheduler, device = make(num_pages=100, page=2, max_tokens=4)
    decoding(scheduler, device, 0, 2)
    scheduler.add(request(1, [9] * 12, 2))
    assert step(scheduler, device).counts == [1, 1, 2], "the newcomer gets what is left"
    assert [seq.request.request_id for seq in scheduler.running] == ["0", "1", "2"]
    assert step(scheduler, device).counts == [1, 2, 1], "and from then on stands where its arrival puts it"


def test_it_gets_a_token_itself_where_there_is_none_to_spare() -> None:
    scheduler, device = make(num_pages=100, page=2, max_tokens=3)
    decoding(scheduler, device, 1, 2)
    scheduler.add(request(0, [9] * 12, 2))
    step(scheduler, device)
    assert step(scheduler, device).counts == [1, 1, 1]


def test_a_prompt_that_is_scored_takes_a_row_of_logits_for_each_token() -> None:
    scheduler, device = make(num_pages=40, page=2, max_tokens=8, max_seqs=2)
    prompt, counts = [1] * 9, []
    scheduler.add(structs.replace(request(0, prompt, 2), prompt_logprobs=0))
    for _ in range(3):
        plan = scheduler.schedule()
        scheduler.update(scored(plan, device.run(plan), len(prompt)))
        counts += plan.counts
    assert counts == [2, 2, 2], "one for each row"


def test_a_scored_prompt_is_computed_although_it_is_cached_and_only_once() -> None:
    scheduler, device = make(num_pages=40, page=1, max_tokens=8, max_seqs=2)
    prompt = [1, 2, 3, 4]
    scheduler.add(request(0, prompt, 1))
    run(scheduler, device, 0)
    scheduler.add(structs.replace(request(1, prompt, 6), prompt_logprobs=0))
    plan = scheduler.schedule()
    assert (plan.starts, plan.counts) == ([0], [2])
    while not plan.samples[0]:
        scheduler.update(scored(plan, device.run(plan), len(prompt)))
        plan = scheduler.schedule()
    [output] = scheduler.update(scored(plan, device.run(plan), len(prompt)))
    assert len(output.prompt_logprobs) == 3
    scheduler._preempt(named(scheduler, "1"))
    assert scheduler.schedule().starts == [4], "its prompt has been scored, so now it may be found"


def test_steps_and_found_prefixes_are_counted() -> None:
    scheduler, device = make(num_pages=40, page=2, max_tokens=8)
    prompt = [1, 2, 3, 4, 5, 6, 7]
    for number, found in ((0, 0), (1, 6), (2, 6)):
        scheduler.add(request(number, prompt, 2))
        plan = scheduler.schedule()
        assert plan.starts == [found]
        assert scheduler.schedule().is_empty or scheduler.num_in_flight == 2
        [first, *_] = scheduler.update(device.run(plan))
        assert first.num_cached == found
        scheduler.fail("the rest is of no interest")
    assert (scheduler.num_prefix_queries, scheduler.num_prefix_hits) == (18, 12)


def test_who_comes_back_is_not_counted_again() -> None:
    scheduler, device = make(num_pages=40, page=1, max_tokens=8)
    decoding(scheduler, device, 5)
    scheduler._preempt(named(scheduler, "5"))
    step(scheduler, device)
    assert (scheduler.num_prefix_queries, scheduler.num_prefix_hits) == (0, 0)
    assert named(scheduler, "5").num_cached == 0
    assert scheduler.num_steps == 2
    assert scheduler.step_sizes.num_tokens == 2
    assert scheduler.step_sizes.num_steps[0] == 2


# Where pages are short


def test_pages_of_one_that_leaves_are_waited_for() -> None:
    """The one that needs them waits, nobody is preempted, and who has room in its pages goes on."""
    scheduler, device = make(num_pages=7, page=2, max_tokens=16)
    scheduler.add(request(0, [1, 2], 4))
    scheduler.add(request(1, [3], 4))
    scheduler.add(request(2, [4] * 8, 4))
    flight = scheduler.schedule()
    assert flight.counts == [2, 1, 8]
    scheduler.abort("2")
    plan = scheduler.schedule()
    assert plan.rows == [named(scheduler, "1").row]
    assert plan.counts == [1]
    assert scheduler.num_preemptions == 0
    device_outputs = [device.run(flight), device.run(plan)]
    for output in device_outputs:
        scheduler.update(output)
    assert run(scheduler, device, 0)["0"] == solo([1, 2], 4, [])[1:]


def short(num_free: int) -> tuple[Scheduler, Arithmetic]:
    """Three sequences: 0 decodes, 1 has two tokens left of a prompt, 2 decodes; a step is in flight, 0 leaves, and so
    many pages are free."""
    scheduler, device = make(num_pages=40, page=1, max_tokens=4)
    decoding(scheduler, device, 0, 2)
    scheduler.add(request(1, [9] * 6, 2))
    step(scheduler, device)
    assert scheduler.schedule().counts == [1, 2, 1]
    scheduler.abort("0")
    pool = scheduler.cache.pools[0]
    pool.allocate(pool.num_free - num_free)
    assert pool.num_available == num_free
    return scheduler, device


def test_what_comes_free_belongs_to_who_ran_short() -> None:
    """1 needs two pages; 2 needs one, and there is one: it stays free, and nobody new is admitted for it."""
    scheduler, _ = short(num_free=1)
    scheduler.add(request(3, [7], 1))
    assert scheduler.schedule().is_empty
    assert scheduler.num_preemptions == 0
    assert scheduler.num_waiting == 1


def test_what_does_not_suffice_is_not_waited_for() -> None:
    """0 leaves, and with it three pages; more are gone, so 2 is preempted at once."""
    scheduler, _ = short(num_free=0)
    leaving = next(iter(scheduler._leaving))
    assert leaving.table is not None
    scheduler.cache.shorten(leaving.table, 1)
    pool = scheduler.cache.pools[0]
    pool.allocate(pool.num_available)
    scheduler.schedule()
    assert scheduler.num_preemptions == 1
    assert named(scheduler, "2").status is Status.PREEMPTED


def test_the_last_one_is_preempted() -> None:
    scheduler, device = make(num_pages=40, page=1, max_tokens=8)
    decoding(scheduler, device, 0, 1, 2, 3)
    pool = scheduler.cache.pools[0]
    pool.allocate(pool.num_free)
    plan = scheduler.schedule()
    assert scheduler.num_preemptions == 2, "each of them gave up one page"
    assert [seq.request.request_id for seq in scheduler.running] == ["0", "1"]
    assert plan.counts == [1, 1]


def test_nothing_can_run() -> None:
    """A defect of ours, such as pages that were lost, is found at once."""
    scheduler, _ = make(num_pages=10, page=1)
    scheduler.add(request(0, [1], 1))
    scheduler.cache.pools[0].allocate(9)
    with pytest.raises(AssertionError, match=r"^nothing can run$"):
        scheduler.schedule()


# Transfers


def test_transfers_do_not_make_a_step_while_one_is_in_flight() -> None:
    """The one in flight has to retire first: then there is something to compute beside them."""
    scheduler, device = make(num_pages=40, page=1, max_tokens=8, num_swap=20)
    scheduler.swaps.pace = Pace(3)
    repeated: Request = structs.replace(request(0, [1], 9), repetition_penalty=1.5)  # waits for each draw
    scheduler.add(repeated)
    scheduler.add(request(1, [2] * 5, 9))
    step(scheduler, device)
    pool = scheduler.cache.pools[0]
    pool.allocate(pool.num_available)
    plan = scheduler.schedule()
    while not plan.rows:
        assert [len(transfer.pages[0]) for transfer in plan.transfers] == [1]
        output = device.run(plan)
        scheduler.update(structs.replace(output, transferred=device.transferred))
        plan = scheduler.schedule()
    assert scheduler.swaps.under_way
    assert scheduler.num_in_flight == 1
    assert scheduler.schedule().is_empty


# Beside the plan


def test_what_waits_for_masks(compiler: GuidanceCompiler) -> None:
    """Items that draw by a grammar: not those of a part of a prompt, and not those without."""
    scheduler, _ = make(num_pages=40, page=1, max_tokens=8)
    assert scheduler.masked == []
    form = Structured("regex", "[ab]+")
    scheduler.add(structs.replace(request(0, [1] * 9, 4), structured=form))
    assert scheduler.schedule().is_empty, "the grammar is not there yet, and that is no defect"
    scheduler.loaded("0", compiler.compile(form, [EOS]))
    assert scheduler.schedule().counts == [8]
    assert scheduler.masked == []
    scheduler.update(StepOutput([]))
    scheduler.add(request(1, [2], 4))
    plan = scheduler.schedule()
    assert [(item.seq.request.request_id, item.num_tokens) for item in scheduler.masked] == [("0", 1)]
    assert plan.masked == [0]


def test_each_that_runs_has_a_row_of_logits() -> None:
    cache = KVCache([KVGroup(1, 1, 1)], [40], 1, True)
    scheduler = Scheduler(cache, max_tokens=8, max_seqs=2, max_model_len=39, spec=b"test")
    for number in range(3):
        scheduler.add(request(number, [number], 4))
    assert scheduler.schedule().counts == [1, 1]


@pytest.mark.parametrize("prefix", [True, False])
def test_pages_are_announced_with_their_ids(prefix: bool) -> None:
    """Of each page that can be found: none where prefixes are not kept."""
    cache = KVCache([KVGroup(1, 1, 1)], [40], 2, prefix)
    cache.events = KVEvents(2)
    scheduler = Scheduler(cache, max_tokens=8, max_seqs=2, max_model_len=39, spec=b"test")
    scheduler.add(request(0, [1, 2, 3], 2))
    scheduler.schedule()
    scheduler.update(StepOutput([7]))
    scheduler.schedule()
    scheduler.update(StepOutput([8]))
    stored = [event.token_ids for event in cache.events.take() if isinstance(event, BlockStored)]
    assert stored == ([[1, 2], [3, 7]] if prefix else [])
    assert len(cache.indexes[0]) == len(stored)


# Drafts


def test_drafts_take_free_pages() -> None:
    scheduler, device = make(num_pages=40, page=1, max_tokens=8)
    scheduler.drafting = oracle(following, 3, spoil=0, fewer=0)
    scheduler.max_logits = 8
    scheduler.add(request(0, [1], 9))
    plan = scheduler.schedule()
    assert plan.drafts == [following([1], 3)]
    assert plan.counts == [4]
    assert [edit[2] for edit in plan.edits] == [1, 2, 3]
    [output] = scheduler.update(device.run(plan))
    assert output.new_ids == solo([1], 4, [])
