"""Drafters, what is accepted, how many drafts pay, and what may be asked for."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import ConfigError
from core.speculate.choice import NgramChoice, parse_speculative
from core.speculate.drafting import Drafting
from core.speculate.lengths import EXPECTED, Lengths, Record
from core.speculate.ngram import NgramDrafter


def looked_up(ids: list[int], num: int, least: int, most: int) -> list[int]:
    """As `NgramDrafter`, by looking everywhere."""
    for size in range(most, least - 1, -1):
        for start in range(len(ids) - 1, size - 1, -1):
            if len(ids) > size and ids[start - size : start] == ids[-size:]:
                text = list(ids)
                for _ in range(num):
                    text.append(text[start + len(text) - len(ids)])
                return text[len(ids) :]
    return []


@given(
    ids=st.lists(st.integers(0, 3), max_size=40),
    more=st.lists(st.integers(0, 3), max_size=12),
    num=st.integers(1, 6),
    limits=st.sampled_from([(1, 1), (1, 3), (2, 4), (3, 3)]),
)
def test_ngram_finds_the_last_of_the_longest(
    ids: list[int], more: list[int], num: int, limits: tuple[int, int]
) -> None:
    drafter = NgramDrafter(*limits)
    for token_id in more:
        assert drafter.propose(ids, num) == looked_up(ids, num, *limits)
        ids.append(token_id)
    assert drafter.propose(ids, num) == looked_up(ids, num, *limits)


def test_ngram_goes_on_with_a_repetition() -> None:
    assert NgramDrafter(2, 4).propose([1, 2, 3, 1, 2, 3, 1, 2, 3], 7) == [1, 2, 3, 1, 2, 3, 1]
    assert NgramDrafter(1, 4).propose([5, 7, 7], 4) == [7, 7, 7, 7]
    assert NgramDrafter(2, 4).propose([5, 7, 8, 7], 4) == []


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("ngram", NgramChoice(8, 2, 4)),
        ("ngram:3", NgramChoice(3, 2, 4)),
        ("ngram:32:1-16", NgramChoice(32, 1, 16)),
    ],
)
def test_what_may_be_asked_for(text: str, wanted: NgramChoice) -> None:
    assert parse_speculative(text) == wanted
    assert parse_speculative(str(wanted)) == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "give ngram"),
        ("medusa", "speculative is 'medusa': give ngram"),
        ("ngram:", "give ngram"),
        ("ngram:4:2", "give ngram"),
        ("ngram:-1", "give ngram"),
        ("ngram:0", "asks for 0 drafts: it must be 1 to 32"),
        ("ngram:33", "asks for 33 drafts"),
        ("ngram:4:0-3", "runs of 0-3 ids"),
        ("ngram:4:3-2", "runs of 3-2 ids"),
        ("ngram:4:2-17", "runs of 2-17 ids"),
    ],
)
def test_what_may_not(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_speculative(text)


def drafting(seconds_of) -> Lengths:
    """That has seen steps of all sizes."""
    lengths = Lengths()
    for size in range(1, 200):
        lengths.add_step(size, seconds_of(size))
    return lengths


def good_at(chance: float) -> Record:
    record = Record()
    record.chance = chance
    return record


def test_all_are_taken_where_tokens_cost_nothing() -> None:
    assert drafting(lambda size: 1.0).choose([(good_at(0.5), 4), (good_at(0.9), 8)], 2, 2) == [4, 8]


def test_none_are_taken_where_tokens_cost_what_they_give() -> None:
    assert drafting(lambda size: 1.0 * size).choose([(good_at(0.95), 8)], 1, 1) == [0]


def lived(num_draws: int, num_right: int, chance: float) -> Record:
    """A record of so many draws with that many right drafts in all, whose next drafts have that chance."""
    record = Record()
    for place in range(num_draws):
        record.add(8, num_right if place == 0 else 0)
    record.chance = chance
    return record


def test_a_step_is_no_longer_than_its_slowest_sequence_makes_up_for() -> None:
    """A step with 8 drafts takes 1.4 times as long, and gives one sequence some 5 tokens more. Of 8 one may lose."""
    good = (good_at(0.9), 8)
    by_size = drafting(lambda size: 1 + 0.05 * (size - 4))
    for others, is_drafted in (
        ([], True),  # alone it gains
        ([(lived(20, 0, 0.9), 0)] * 3, False),  # they have nothing of it
        ([(lived(20, 9, 0.9), 0)] * 3, True),  # they had enough of drafts before
        ([(lived(7, 0, 0.9), 0)] * 3, True),  # they have just begun
        ([(lived(20, 0, 0.0), 8)] * 3, False),  # their own are wrong
    ):
        num = by_size.choose([good, *others], 4, 1 + len(others))[0]
        assert (num > 0) == is_drafted, others
    for num_bad, is_drafted in ((1, True), (2, False)):
        some = [good] * (8 - num_bad) + [(lived(20, 0, 0.9), 0)] * num_bad
        assert any(by_size.choose(some, 8, 8)) == is_drafted
    assert by_size.choose([good], 4, 4) == [0], "those without a drafter count, too"


def test_the_likeliest_are_taken_where_they_pay() -> None:
    """A step costs 1 and 0.3 a token more: emitted a second, by brute force."""
    lengths = drafting(lambda size: 1 + 0.3 * (size - 2))
    chances = (0.9, 0.4)
    chosen = lengths.choose([(good_at(chance), 8) for chance in chances], 2, 2)
    rates = {
        (i, j): (2 + sum(0.9**k for k in range(1, i + 1)) + sum(0.4**k for k in range(1, j + 1))) / (1 + 0.3 * (i + j))
        for i in range(9)
        for j in range(9)
    }
    assert tuple(chosen) == max(rates, key=rates.__getitem__)
    assert chosen[0] > chosen[1]


def test_what_is_not_known_is_tried() -> None:
    lengths = Lengths()
    assert lengths.choose([(Record(), 5)], 1, 1) == [0], "what it takes without drafts comes first"
    lengths.add_step(1, 1.0)
    assert lengths.choose([(Record(), 5)], 1, 1) == [5], "larger steps are taken to cost no more until one was seen"
    lengths.add_step(6, 9.0)
    assert lengths.choose([(Record(), 5)], 1, 1) == [0]


def test_a_sequence_that_fails_is_left_alone_and_tried_again() -> None:
    lengths = drafting(lambda size: 1 + 0.4 * (size - 1))
    record, num_drafted = Record(), 0
    for _ in range(2000):
        (num,) = lengths.choose([(record, 8)], 1, 1)
        num_drafted += num
        lengths.add_step(1 + num, 1 + 0.4 * num)
        record.add(num, 0)
    cost = 0.4 * num_drafted / 2000
    assert 0 < cost < 0.05, "never more than 5 % slower"
    for _ in range(100):  # and then every draft is right
        (num,) = lengths.choose([(record, 8)], 1, 1)
        lengths.add_step(1 + num, 1 + 0.4 * num)
        record.add(num, num)
    assert lengths.choose([(record, 8)], 1, 1) == [8]


def test_what_steps_take_without_drafts_is_measured_again() -> None:
    lengths = drafting(lambda size: 1.0)
    chosen = [lengths.choose([(good_at(0.9), 8)], 1, 1) for _ in range(20)]
    assert chosen[:16] == [[8]] * 16
    assert chosen[16:] == [[0]] * 4
    for _ in range(40):
        lengths.add_step(9, 1.0)
        lengths.add_step(1, 0.01)
    assert lengths.choose([(good_at(0.3), 8)], 1, 1) == [0]


def test_times_follow_what_they_become() -> None:
    lengths = drafting(lambda size: 1.0)
    for _ in range(40):
        for size in range(2, 10):
            lengths.add_step(1, 1.0)
            lengths.add_step(size, 30.0)
    assert lengths.choose([(good_at(0.9), 8)], 1, 1) == [0]


def test_what_seems_not_to_pay_is_tried_again() -> None:
    """Some disturbed steps at the start do not decide for ever."""
    lengths = Lengths()
    for size, took_s in ((1, 1.0), (2, 8.0), (9, 8.0), (1, 1.0)):
        lengths.add_step(size, took_s)
    chosen = []
    for _ in range(2000):
        (num,) = lengths.choose([(good_at(0.9), 8)], 1, 1)
        lengths.add_step(1 + num, 1.0)
        chosen.append(num)
    assert chosen[:100] == [0] * 100
    assert chosen.count(8) > 500


def test_what_does_not_pay_is_hardly_ever_tried() -> None:
    lengths, num_drafts = drafting(lambda size: 1 + 0.6 * (size - 1)), 0
    for _ in range(2000):
        (num,) = lengths.choose([(good_at(0.5), 8)], 1, 1)
        lengths.add_step(1 + num, 1 + 0.6 * num)
        num_drafts += num
    assert 0 < num_drafts < 0.01 * 2000


def test_strangers_are_expected_to_be_as_those_before() -> None:
    one = Drafting(lambda: NgramDrafter(1, 2), 3)
    for _ in range(20):
        drafts = one.open([])
        for _ in range(20):
            one.learn(drafts, 3, 0)
    assert one.open([]).record.chance < 0.1
    for _ in range(20000):
        one.learn(drafts, 0, 0)
    assert one.open([]).record.chance == pytest.approx(EXPECTED, abs=0.01)


def test_waits_only_where_drafts_come_of_it() -> None:
    record = Record()
    assert record.waits
    waits = []
    for _ in range(640):
        record.add(0, 0)
        waits.append(record.waits)
    assert 0 < sum(waits[64:]) < 0.2 * len(waits)
    for _ in range(5):
        record.add(4, 4)
    assert record.waits


def test_counts() -> None:
    one = Drafting(lambda: NgramDrafter(1, 2), 3)
    drafts = one.open([])
    for num, right in ((3, 2), (0, 0), (1, 1), (2, 0)):
        one.learn(drafts, num, right)
    counts = one.counts
    assert (counts.num_drafts, counts.num_tokens, counts.num_accepted_at) == (3, 6, [2, 1, 0])
    assert counts.num_reached_at == [3, 1, 1]
    assert drafts.record.chance != EXPECTED


def test_proposals_follow_the_ids() -> None:
    ids = [1, 2, 1]
    one = Drafting(lambda: NgramDrafter(1, 2), 3)
    drafts = one.open(ids)
    assert one.propose([drafts], 1, 1) == [[2, 1, 2]]
    ids += random.Random(0).choices(range(5, 50), k=1)
    assert one.propose([drafts], 1, 1) == [[]]
