"""The draft heads that ship for smollm2: whole, made for these weights, and as good as their card says."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from core import LLM, SamplingParams
from core.engine.models import find_model
from core.speculate.card import CARD, WEIGHTS
from core.speculate.heads import load_heads
from core.speculate.prompts import prompts

HEADS = Path(__file__).parents[3] / "heads" / "smollm2"
MOST_BYTES = 40e6


def test_they_are_what_their_card_names() -> None:
    """Loading compares the weights' hash, the model's digest and every shape."""
    heads = load_heads(HEADS, find_model("smollm2")[0])
    assert heads.card.num_layers == 3
    assert (HEADS / WEIGHTS).stat().st_size + (HEADS / CARD).stat().st_size < MOST_BYTES


@pytest.mark.heavy
def test_they_draft_as_well_as_it_says() -> None:
    """On requests that they were not trained on, in float32; the ids are those without."""
    params = SamplingParams(temperature=0.0, max_tokens=96)
    few = {"dtype": "float32", "max_model_len": 512, "max_num_seqs": 8}
    with LLM("smollm2", **few) as llm:
        asked = [llm.chat_prompt([{"role": "user", "content": text}]) for text in islice(prompts(True, 5), 8)]
        plain = llm.generate(asked, params)
    with LLM("smollm2", speculative=f"mtp:{HEADS}", **few) as llm:
        assert llm.engine.scheduler.drafting is not None
        llm.engine.scheduler.drafting.lengths = None  # all are computed
        drafted = llm.generate(asked, params)
        seen = llm.engine.inspect()
    assert [out.token_ids for out in drafted] == [out.token_ids for out in plain]
    promised = load_heads(HEADS, find_model("smollm2")[0]).card.acceptance.tokens_per_step
    assert 1 + seen.num_accepted_tokens / seen.num_drafts > 1 + 0.75 * (promised - 1)
