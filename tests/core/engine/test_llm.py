"""The engine in this process: prompts of every kind, stops, streaming, sampling, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from core import LLM, ConfigError, RequestError, SamplingParams


@pytest.fixture(scope="module")
def llm(tiny_llama_dir: Path) -> Iterator[LLM]:
    with LLM(str(tiny_llama_dir), device="cpu", dtype="float32", num_kv_blocks=200) as opened:
        yield opened


PROMPT = "the quick brown fox"


def greedy(**more) -> SamplingParams:
    return SamplingParams(temperature=0.0, **{"max_tokens": 24, "ignore_eos": True, **more})


def test_prompts_as_text_and_as_ids_and_in_lists(llm):
    ids = llm.tokenizer.encode(PROMPT)
    text, same, pair = (llm.generate(prompts, greedy()) for prompts in (PROMPT, ids, [PROMPT, ids]))
    assert [len(text), len(same), len(pair)] == [1, 1, 2]
    assert text[0].prompt_ids == ids
    assert {out.text for out in (*text, *same, *pair)} == {text[0].text}
    assert text[0].finish_reason == "length"
    assert len(text[0].token_ids) == 24
    each = llm.generate([PROMPT, PROMPT], [greedy(max_tokens=2), greedy(max_tokens=5)])
    assert [len(out.token_ids) for out in each] == [2, 5]


def test_stream_equals_generate(llm):
    whole = llm.generate(PROMPT, greedy())[0]
    pieces = list(llm.stream(PROMPT, greedy()))
    assert "".join(piece.text for piece in pieces) == whole.text
    assert [i for piece in pieces for i in piece.token_ids] == whole.token_ids
    assert pieces[-1].finish_reason == "length"


def test_leaving_a_stream_ends_its_request(llm):
    for piece in llm.stream(PROMPT, greedy(max_tokens=200)):
        assert piece.finish_reason is None
        break
    assert not llm.engine.scheduler.running
    assert llm.engine.cache.pools[0].num_used == 0


def test_stop_string_ends_the_text_before_it(llm):
    whole = llm.generate(PROMPT, greedy())[0].text
    stop = whole[9:12]
    out = llm.generate(PROMPT, greedy(stop=(stop,)))[0]
    assert out.text == whole[: whole.index(stop)]
    assert (out.finish_reason, out.stop_reason) == ("stop", stop)
    assert "".join(piece.text for piece in llm.stream(PROMPT, greedy(stop=(stop,)))) == out.text


def test_stop_id_ends_the_text_and_is_not_shown(llm):
    whole = llm.generate(PROMPT, greedy())[0]
    stop = whole.token_ids[6]
    first = whole.token_ids.index(stop)
    out = llm.generate(PROMPT, greedy(stop_token_ids=(stop,)))[0]
    assert out.token_ids == whole.token_ids[: first + 1]
    assert out.text == llm.tokenizer.decode(whole.token_ids[:first])
    assert (out.finish_reason, out.stop_reason) == ("stop", stop)


def test_sampling_follows_its_seed(llm):
    def draw(**more) -> list[int]:
        params = SamplingParams(temperature=1.5, max_tokens=24, ignore_eos=True, **more)
        return llm.generate(PROMPT, params)[0].token_ids

    assert draw(seed=1) == draw(seed=1)
    assert draw(seed=1) != draw(seed=2)
    assert draw() != draw()
    best = llm.generate(PROMPT, greedy())[0].token_ids
    assert draw(seed=1, top_k=1) == best
    assert draw(seed=1, top_p=1e-6) == best
    assert draw(seed=1, top_k=5) != best


def test_greedy_and_sampled_requests_share_a_step(llm):
    alone = llm.generate(PROMPT, greedy())[0].token_ids
    mixed = llm.generate([PROMPT] * 3, [SamplingParams(seed=1, max_tokens=24), greedy(), SamplingParams(max_tokens=24)])
    assert mixed[1].token_ids == alone


def test_refusals_come_before_anything_runs(llm):
    with pytest.raises(RequestError, match="top_p is 2"):
        llm.generate([PROMPT, PROMPT], [greedy(), greedy(top_p=2.0)])
    with pytest.raises(RequestError, match="3 sampling parameters for 2 prompts"):
        llm.generate([PROMPT, PROMPT], [greedy()] * 3)
    with pytest.raises(RequestError, match="the limit is 511"):
        llm.generate([5] * 512, greedy())
    assert not llm.engine.busy


def test_options_are_checked(tiny_llama_dir):
    with pytest.raises(TypeError, match="no option speed"):
        LLM(str(tiny_llama_dir), speed=3)
    with pytest.raises(ConfigError, match="dtype is int4"):
        LLM(str(tiny_llama_dir), dtype="int4")
