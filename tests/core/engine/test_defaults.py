"""Sampling that a model proposes, and where it yields."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from core import LLM, ConfigError, SamplingParams
from core.engine.defaults import fit, read_defaults


def test_llm_proposes_what_the_model_says(make_llama: Callable[..., Path]):
    folder = make_llama()
    (folder / "generation_config.json").write_text(json.dumps({"top_k": 1, "max_new_tokens": 4, "eos_token_id": 2}))
    with LLM(str(folder), device="null") as llm:
        proposed = llm.default_sampling(temperature=3.0, max_tokens=9)
        assert proposed == SamplingParams(top_k=1, max_tokens=4, temperature=3.0)
        assert llm.generate([[50]], proposed)[0].token_ids == [51, 52, 53, 54]


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"temperature": "hot"}, "'hot': it must be of type float"),
        ({"top_k": True}, "True: it must be of type int"),
        ({"top_k": 385}, "between -1 and 384"),
        ({"top_p": 0}, "above 0"),
        ({"max_new_tokens": 0}, "at least 1"),
    ],
)
def test_values_that_no_request_could_have(entries, words):
    with pytest.raises(ConfigError, match=words):
        read_defaults(entries, 384)


def test_null_and_other_entries_set_nothing():
    assert read_defaults({"top_p": None, "do_sample": True, "max_length": 20, "eos_token_id": 2}, 384) == {}


def test_a_limit_fits_the_room_left():
    assert fit(SamplingParams(max_tokens=50), 90, 100).max_tokens == 10
    assert fit(SamplingParams(max_tokens=5), 90, 100).max_tokens == 5
    assert fit(SamplingParams(max_tokens=5), 120, 100).max_tokens == 1
    assert fit(SamplingParams(max_tokens=None), 90, 100).max_tokens is None
