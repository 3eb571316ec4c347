"""Draft layers are left off where what they foretell does not pay, and tried again."""

from __future__ import annotations

from pathlib import Path

import pytest

from core import LLM, SamplingParams
from core.speculate.drafting import Drafting, SequenceDrafts
from core.speculate.following import Following
from core.speculate.lengths import Lengths
from tests.core.engine.test_drafts import GREEDY, check_same, serve
from tests.core.speculate.random_heads import write_heads

ALONE_S, A_DRAFT_S = 1.0, 0.05


def run(drafting: Drafting, drafts: SequenceDrafts, num_draws: int, right: bool, foretelling_s: float) -> int:
    """Draws of one sequence that runs alone: in how many of their steps ids were foretold."""
    num_foretelling = 0
    for _ in range(num_draws):
        (ids,) = drafting.propose([drafts], 1, 1)
        extra_s = foretelling_s if drafts.followed else 0.0
        num_foretelling += drafts.followed
        took_s = ALONE_S + A_DRAFT_S * len(ids) + extra_s
        drafting.learn_time(1 + len(ids), took_s, extra_s)
        if extra_s:
            drafting.learn_gain(1, 1 + len(ids) * right)
        drafting.learn(drafts, len(ids), len(ids) if right else 0)
        if drafts.followed:
            drafts.hear([7, 7, 7])
    return num_foretelling


def begun(drafting: Drafting) -> SequenceDrafts:
    drafts = drafting.open([1])
    drafting.follow(drafts, 1)
    return drafts


def test_what_is_never_right_is_given_up_and_tried_in_one_of_many_sequences() -> None:
    drafting = Drafting(None, 3, Lengths())
    first = run(drafting, begun(drafting), 200, right=False, foretelling_s=0.2)
    assert 0 < first < 60
    followed = [run(drafting, begun(drafting), 200, right=False, foretelling_s=0.2) for _ in range(300)]
    assert 1 <= sum(num > 0 for num in followed[-64:]) <= 20
    assert 0.2 * sum(followed) < 0.01 * 200 * 300


def test_what_is_right_is_kept_and_found_again_after_a_bad_time() -> None:
    drafting = Drafting(None, 3, Lengths())
    assert run(drafting, begun(drafting), 100, right=True, foretelling_s=0.2) == 100
    for _ in range(20):
        run(drafting, begun(drafting), 200, right=False, foretelling_s=0.2)
    assert not begun(drafting).followed
    again = [run(drafting, begun(drafting), 200, right=True, foretelling_s=0.2) for _ in range(320)]
    assert again[-20:] == [200] * 20


def test_what_costs_more_than_it_gives_is_given_up() -> None:
    drafting = Drafting(None, 3, Lengths())
    assert run(drafting, begun(drafting), 100, right=True, foretelling_s=4.0) < 30
    assert not begun(drafting).followed


def test_without_draft_layers_nothing_is_followed() -> None:
    drafting = Drafting(Nothing, 3, Lengths())
    assert not begun(drafting).followed


class Nothing:
    def propose(self, token_ids, num):
        return []


@pytest.mark.parametrize("depth", [0, 1])
def test_an_engine_leaves_bad_heads_off(tiny_llama_dir: Path, tmp_path: Path, depth: int) -> None:
    plain, _ = serve(tiny_llama_dir, GREEDY)
    heads = write_heads(tmp_path / "heads", tiny_llama_dir, 2)
    drafted, seen = serve(tiny_llama_dir, GREEDY, speculative=f"mtp:{heads}", pipeline_depth=depth)
    check_same(drafted, plain)
    assert 0 < seen.num_foretelling_steps < seen.num_steps
    assert seen.foretelling_s > 0


def test_what_was_not_followed_is_not_drafted_for_when_it_is_found(
    tiny_llama_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages that were computed with the draft layers off have no entries of theirs."""
    heads = write_heads(tmp_path / "heads", tiny_llama_dir, 2)
    few = {"dtype": "float32", "fallback": "allow", "block_size": 4, "num_kv_blocks": 100, "max_model_len": 64}
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    with LLM(str(tiny_llama_dir), speculative=f"mtp:{heads}", **few) as llm:
        monkeypatch.setattr(Following, "would_pay", lambda *_: False)
        llm.generate([[5, 6, 7, 8, 9, 10, 11, 12, 13]], params)
        assert llm.engine.inspect().num_foretelling_steps == 0
        monkeypatch.undo()
        llm.generate([[5, 6, 7, 8, 9, 10, 11, 12, 13]], params)
        assert llm.engine.inspect().num_foretelling_steps == 0
        llm.generate([[50, 60, 70, 80, 90, 100, 110, 120, 130]], params)
        assert llm.engine.inspect().num_foretelling_steps > 0
