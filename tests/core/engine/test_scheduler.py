"""The scheduler against an arithmetic device that reads ids back through block tables.

The device keeps what each step wrote in a page pool of plain integers, so a wrong page, row, edit or ordering shows
as a wrong token: the next token is a hash of all tokens before it, as read from the pages. It may have room on a host,
too; transfers there and back read and write at once or as late as they may, and are reported complete later still.
"""

import hashlib
import random
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.engine.scheduler import Scheduler
from core.engine.step import StepOutput, StepPlan, Transfer
from core.engine.swap import Pace
from core.errors import RequestError
from core.kv.cache import KVCache
from core.kv.groups import KVGroup
from core.request import Request
from tests.core.speculate.oracle_drafter import oracle

VOCAB = 50


def next_token(tokens: list[int]) -> int:
    return hashlib.sha256(bytes(tokens)).digest()[0] % VOCAB


def solo(prompt: list[int], max_tokens: int, stop_ids: list[int]) -> list[int]:
    """What a request must produce, whatever else runs."""
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(next_token(tokens))
        if tokens[-1] in stop_ids:
            break
    return tokens[len(prompt) :]


def following(tokens, num: int) -> list[int]:
    """What an oracle drafts."""
    known = list(tokens)
    for _ in range(num):
        known.append(next_token(known))
    return known[len(tokens) :]


class Arithmetic:
    """Executes plans in order; sees only what the plan tells."""

    def __init__(
        self, cache: KVCache, num_pages: list[int], page: int, window: int | None, num_swap: tuple[int, ...] = ()
    ) -> None:
        self.cache = cache
        layers = [group.num_layers for group in cache.groups]
        self.host = [np.full((num, n * page), -9) for num, n in zip(layers, num_swap, strict=False)]
        self.rng = random.Random(5)
        self.transferred = 0
        self.under_way: deque[tuple[Transfer, bool]] = deque()  # each with whether it is done, though not reported
        self.page = page
        self.window = window
        self.pools = [np.full((num, n * page), -7) for num, n in zip(layers, num_pages, strict=True)]
        self.given: dict[int, list[int]] = {}
        self.tables: dict[int, list[dict[int, int]]] = {}
        self.last: dict[int, int] = {}

    def run(self, plan: StepPlan) -> StepOutput:
        for new in plan.new:
            self.given[new.row] = list(new.token_ids)
            self.tables[new.row] = [dict(enumerate(t)) for t in new.tables]
        for row, token_id in plan.drawn:
            self.given[row].append(token_id)
        for row, group, index, page in plan.edits:
            self.tables[row][group][index] = page
        assert plan.transferred <= self.transferred
        for transfer in plan.transfers:
            early = self.rng.random() < 0.5
            if early:
                self.move(transfer)
            self.under_way.append((transfer, early))
        if plan.waits:
            self.finish_oldest()
        drawn: list[int] = []
        accepted: list[int] = []
        all_drafts = plan.drafts or [[]] * len(plan.rows)
        for row, start, count, samples, drafts in zip(
            plan.rows, plan.starts, plan.counts, plan.samples, all_drafts, strict=True
        ):
            known = start + count - len(drafts)
            given = self.given[row]
            for position in range(start, start + count):
                if position >= known:
                    token = drafts[position - known]
                else:
                    token = given[position] if position < len(given) else self.last[row]
                for g, pool in enumerate(self.pools):
                    slot_page = self.tables[row][g][position // self.page]
                    assert slot_page != 0, "a write to the null page"
                    pool[:, slot_page * self.page + position % self.page] = token
            if samples:
                ids = [self.read(row, length) for length in range(known, start + count + 1)]
                drawn += ids
                right = [draft == drawn_id for draft, drawn_id in zip(drafts, ids, strict=False)]
                accepted.append([*right, False].index(False))
                self.last[row] = ids[accepted[-1]]
        return StepOutput(drawn, accepted=accepted)

    def move(self, transfer: Transfer) -> None:
        for g, (pages, places) in enumerate(zip(transfer.pages, transfer.host_pages, strict=True)):
            layers = slice(*transfer.layers or (0, len(self.pools[g])))
            pool, host = (
                x[layers].reshape(-1, x.shape[1] // self.page, self.page) for x in (self.pools[g], self.host[g])
            )
            assert 0 not in pages
            assert len(set(pages)) == len(pages) == len(set(places)) == len(places)
            if transfer.to_host:
                host[:, places] = pool[:, pages]
            else:
                pool[:, pages] = host[:, places]

    def finish_oldest(self) -> None:
        transfer, early = self.under_way.popleft()
        if not early:
            self.move(transfer)
        assert transfer.number == self.transferred + 1
        self.transferred = transfer.number

    def polled(self, output: StepOutput) -> StepOutput:
        """What is told of transfers when a step's output is read."""
        while self.under_way and self.rng.random() < 0.3:
            self.finish_oldest()
        return StepOutput(output.ids, transferred=self.transferred, accepted=output.accepted)

    def read(self, row: int, length: int) -> int:
        def at(group: int, position: int) -> int:
            page = self.tables[row][group][position // self.page]
            assert self.cache.pools[group].refs[page] > 0, "reads a page that was given back"
            [token] = set(self.pools[group][:, page * self.page + position % self.page].tolist())
            return token

        tokens = [at(0, p) for p in range(length)]
        if self.window is not None:
            first = max(0, length - self.window)
            assert [at(1, p) for p in range(first, length)] == tokens[first:], "the window group lost a token"
        return next_token(tokens)


def make(
    num_pages: int = 40,
    page: int = 2,
    depth: int = 0,
    max_tokens: int = 8,
    max_seqs: int = 4,
    window: int | None = None,
    num_swap: int = 0,
    max_drafts: int = 0,
    answer=following,
) -> tuple[Scheduler, Arithmetic]:
    groups = [KVGroup(3, 1, 1)] + ([KVGroup(2, 1, 1, retain=window)] if window else [])
    pages = [num_pages] * len(groups)
    cache = KVCache(groups, pages, page, prefix=True)
    swap = (num_swap,) * len(groups) if num_swap else ()
    scheduler = Scheduler(
        cache,
        max_tokens=max_tokens,
        max_seqs=max_seqs,
        max_model_len=(num_pages - 1) * page,
        spec=b"test",
        num_swap_pages=swap,
        max_logits=max_seqs * (1 + max_drafts),
        drafting=oracle(answer, max_drafts) if max_drafts else None,
    )
    scheduler.swaps.pace = Pace(22)  # nothing tells whether that is too much
    return scheduler, Arithmetic(cache, pages, page, window, swap)


def check_accounts(scheduler: Scheduler) -> None:
    for pool in scheduler.cache.pools:
        held: dict[int, int] = {}
        g = scheduler.cache.pools.index(pool)
        for seq in [*scheduler.running, *scheduler._leaving]:
            assert seq.table is not None
            for page in seq.table.held(g).tolist():
                held[page] = held.get(page, 0) + 1
        assert {p: int(pool.refs[p]) for p in range(pool.num_pages) if pool.refs[p]} == held
        assert pool.num_free + pool.num_cached + len(held) == pool.num_pages - 1
        assert pool.num_used == len(held)
    host = scheduler.swaps.host
    copies = [seq.host for seq in {*scheduler.sequences(), *scheduler._leaving} if seq.host]
    for g, (num, free) in enumerate(zip(host.num_pages, host.free, strict=True)):
        assert sorted([*free, *(page for copy in copies for page in copy.pages[g])]) == list(range(num))


def run(scheduler: Scheduler, device: Arithmetic, depth: int, between=lambda: None) -> dict[str, list[int]]:
    outputs: dict[str, list[int]] = {}
    reasons: dict[str, str] = {}
    flights: deque[StepOutput] = deque()
    for _ in range(20_000):
        between()
        if not scheduler.busy:
            return outputs
        plan = scheduler.schedule()
        check_accounts(scheduler)
        if not plan.is_empty:
            assert plan.num_tokens <= scheduler.max_tokens
            assert len(plan.rows) <= scheduler.max_seqs
            assert plan.num_draws <= scheduler.max_logits
            flights.append(device.run(plan))
        if flights and (plan.is_empty or len(flights) > depth):
            for out in scheduler.update(device.polled(flights.popleft())):
                assert out.request_id not in reasons, "output after the end"
                outputs.setdefault(out.request_id, []).extend(out.new_ids)
                if out.finish_reason:
                    reasons[out.request_id] = out.finish_reason
            check_accounts(scheduler)
    raise AssertionError("livelock")


def request(
    i: int, prompt: list[int], max_tokens: int, stop_ids: list[int] | None = None, priority: int = 0
) -> Request:
    return Request(
        request_id=str(i),
        prompt_ids=prompt,
        temperature=0.0,
        top_k=0,
        top_p=1.0,
        seed=0,
        max_tokens=max_tokens,
        stop_ids=stop_ids or [],
        priority=priority,
        arrival_s=float(i),
    )


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    depth=st.sampled_from([0, 1]),
    page=st.sampled_from([1, 2, 3, 4]),
    num_pages=st.integers(12, 40),
    max_tokens=st.integers(1, 12),
    max_seqs=st.integers(1, 5),
    window=st.sampled_from([None, None, 3, 5]),
    num_swap=st.sampled_from([0, 2, 12, 60]),
    max_drafts=st.sampled_from([0, 1, 3, 8]),
)
def test_random_workloads_give_solo_outputs(
    seed, depth, page, num_pages, max_tokens, max_seqs, window, num_swap, max_drafts
):
    """Shared prefixes, tiny pools, stops, aborts, priorities, drafts, at both depths: no wrong id, leak or livelock."""
    rng = random.Random(seed)
    scheduler, device = make(num_pages, page, depth, max_tokens, max_seqs, window, num_swap, max_drafts)
    limit = scheduler.max_model_len
    prefix = [rng.randrange(VOCAB) for _ in range(limit // 2)]
    wanted: dict[str, list[int]] = {}
    todo = []
    for i in range(rng.randrange(2, 12)):
        prompt = prefix[: rng.randrange(1, len(prefix) + 1)] + [rng.randrange(VOCAB) for _ in range(rng.randrange(3))]
        prompt = prompt[: limit - 1]
        n = rng.randrange(1, limit - len(prompt) + 1)
        stops = [rng.randrange(VOCAB)] if rng.random() < 0.5 else []
        todo.append(request(i, prompt, n, stops, rng.randrange(3)))
        wanted[str(i)] = solo(prompt, n, stops)
    aborted: set[str] = set()

    def between() -> None:
        if todo and rng.random() < 0.4:
            scheduler.add(todo.pop())
        if rng.random() < 0.05:
            alive = [s.request.request_id for s in scheduler.sequences()]
            if alive:
                victim = rng.choice(alive)
                assert scheduler.abort(victim) is not None
                aborted.add(victim)

    got: dict[str, list[int]] = {}
    while todo or scheduler.busy:
        for key, ids in run(scheduler, device, depth, between).items():
            got.setdefault(key, []).extend(ids)
    for key, ids in wanted.items():
        if key in aborted:
            assert ids[: len(got.get(key, []))] == got.get(key, [])
        else:
            assert got[key] == ids
    scheduler.check_idle()
    for pool in scheduler.cache.pools:
        assert pool.num_used == 0
        assert not pool.refs.any()


@pytest.mark.parametrize("depth", [0, 1])
def test_second_turn_finds_its_prefix(depth):
    scheduler, device = make(num_pages=60, page=4, max_tokens=64)
    prompt = list(range(21))
    scheduler.add(request(0, prompt, 8))
    first = run(scheduler, device, depth)["0"]
    follow = prompt + first + [1, 2, 3]
    scheduler.add(request(1, follow, 4))
    plan = scheduler.schedule()
    assert plan.starts == [28], "28 of 28 computed tokens lie in full pages"
    scheduler.fail("test")
    assert scheduler.cache.pools[0].num_used == 0


def test_other_salt_finds_nothing():
    scheduler, device = make(num_pages=60, page=4, max_tokens=64)
    scheduler.add(request(0, list(range(20)), 2))
    run(scheduler, device, 0)
    salted = Request(
        request_id="s", prompt_ids=list(range(20)), temperature=0, top_k=0, top_p=1, seed=0, max_tokens=2,
        stop_ids=[], cache_salt="tenant",
    )  # fmt: skip
    scheduler.add(salted)
    assert scheduler.schedule().starts == [0]


def test_priority_runs_first_and_is_preempted_last():
    scheduler, device = make(num_pages=13, page=1, max_tokens=12, max_seqs=3)
    scheduler.add(request(0, [1, 2, 3], 8, priority=5))
    scheduler.add(request(1, [4, 5, 6], 8, priority=0))
    outputs = run(scheduler, device, 0)
    assert outputs["0"] == solo([1, 2, 3], 8, [])
    assert outputs["1"] == solo([4, 5, 6], 8, [])
    assert scheduler.num_preemptions >= 1


def test_running_sequences_keep_moving_beside_a_long_prompt():
    scheduler, device = make(num_pages=100, page=2, max_tokens=4, max_seqs=4)
    scheduler.add(request(0, list(range(40)), 2))
    scheduler.add(request(1, [1], 5))
    first = scheduler.schedule()
    assert first.counts == [4]
    scheduler.update(device.run(first))
    # The long one is older and would take the whole budget again.
    scheduler.running[0].request  # noqa: B018
    plan = scheduler.schedule()
    assert plan.num_tokens <= 4


def test_refusals_name_the_limit():
    scheduler, _ = make(num_pages=5, page=2)
    with pytest.raises(RequestError, match=r"6 \+ 3 tokens: the limit is 8"):
        scheduler.add(request(0, [1] * 6, 3))
    with pytest.raises(RequestError, match="empty"):
        scheduler.add(request(0, [], 1))
    scheduler.add(request(0, [1], 1))
    with pytest.raises(RequestError, match="in use"):
        scheduler.add(request(0, [1], 1))


def test_fail_ends_what_was_in_flight_and_nothing_else():
    scheduler, device = make(num_pages=40, page=2, max_seqs=2)
    for i in range(4):
        scheduler.add(request(i, [i + 1, 2, 3], 4))
    scheduler.schedule()
    ended = scheduler.fail("kernel broke")
    assert {o.request_id for o in ended} == {"0", "1"}
    assert all(o.finish_reason == "error" and o.error == "kernel broke" for o in ended)
    rest = run(scheduler, device, 0)
    assert rest == {str(i): solo([i + 1, 2, 3], 4, []) for i in (2, 3)}
    assert scheduler.cache.pools[0].num_used == 0


def test_logits_that_are_not_numbers_end_one_request():
    scheduler, device = make()
    scheduler.add(request(0, [1], 4))
    scheduler.add(request(1, [2], 2))
    plan = scheduler.schedule()
    drawn = device.run(plan)
    outputs = scheduler.update(StepOutput([-1, drawn.ids[1]]))
    assert [(o.request_id, o.finish_reason) for o in outputs] == [("0", "error"), ("1", None)]
