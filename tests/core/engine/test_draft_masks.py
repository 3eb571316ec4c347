"""Masks of drafts: those there would be once each draft was drawn, and a matcher that is where it was."""

from __future__ import annotations

import random

import numpy as np
import pytest

from core.engine.budget import BudgetMatcher
from core.engine.grammar import Compiler, Matcher, fill_masks
from core.model.tokenizer import Tokenizer
from core.request import Structured
from tests.core.engine.grammars import EOS, FORMS, VOCAB, walk


def masks(draws: list[tuple[Matcher, list[int]]]) -> np.ndarray:
    return np.frombuffer(fill_masks(draws, VOCAB), np.int32).reshape(-1, -(-VOCAB // 32))


@pytest.mark.parametrize("name", FORMS)
def test_they_are_those_of_each_position(compiler: Compiler, name: str) -> None:
    form, _ = FORMS[name]
    ids = walk(compiler.compile(form, [EOS]), random.Random(4))[:40]
    plain = compiler.compile(form, [EOS])
    wanted = []
    for token_id in ids:
        wanted.append(masks([(plain, [])])[0])
        assert plain.accept([token_id]) == 1
    matcher, other = compiler.compile(form, [EOS]), compiler.compile(form, [EOS])
    at, rng = 0, random.Random(5)
    while at < len(ids):
        drafts = ids[at : at + rng.randrange(6)]
        kept = list(drafts)
        got = masks([(other, []), (matcher, drafts)])
        num = min(1 + len(drafts), len(ids) - at)
        assert np.array_equal(got[1 : 1 + num], wanted[at : at + num])
        assert np.array_equal(got[0], wanted[0])
        # The end of a form may leave nothing to draw: then the draft before it is left to be drawn.
        assert drafts in (kept, kept[:-1])
        assert matcher.fault is None
        step = rng.randrange(1, 4)
        assert matcher.accept(ids[at : at + step]) == len(ids[at : at + step])
        at += step


def test_a_fault_ahead_leaves_its_draft_to_be_drawn(compiler: Compiler, tokenizer: Tokenizer) -> None:
    """After three letters nothing may follow, not even an end: that is an error once they are drawn, and not before."""
    letters = [tokenizer.token_to_id(letter) for letter in "abc"]
    matcher = compiler.compile(Structured("regex", "[abc]{3}"), [])
    drafts = list(letters)
    got = masks([(matcher, drafts)])
    assert drafts == letters[:2]
    assert matcher.fault is None
    assert matcher.accept(letters) == 3
    assert not got[:3].all()
    masks([(matcher, [])])
    assert "it is complete, and no id ends this request" in matcher.fault


def test_a_budget_counts_drafts_and_forgets_them(compiler: Compiler, tokenizer: Tokenizer) -> None:
    """Free text for four ids, then its end is forced: with two drawn and three drafts, after the second of them."""
    free = Structured("regex", "(?s:.)*</t>x")
    end = [tokenizer.token_to_id(letter) for letter in "</t>"]
    a = tokenizer.token_to_id("a")

    def budget() -> BudgetMatcher:
        inner = compiler.compile(free, [EOS])
        return BudgetMatcher(inner, b"", b"</t>", end, 4, tokenizer.token_bytes)

    matcher, plain = budget(), budget()
    assert matcher.accept([a, a]) == plain.accept([a, a]) == 2
    got = masks([(matcher, [a, a, end[0]])])
    wanted = []
    for token_id in (a, a, end[0], end[1]):
        wanted.append(masks([(plain, [])])[0])
        assert plain.accept([token_id]) == 1
    assert np.array_equal(got, wanted)
    assert np.unpackbits(got[2].view(np.uint8)).sum() == 1
    assert matcher.accept([a]) == 1
    assert np.array_equal(masks([(matcher, [])])[0], wanted[1])
