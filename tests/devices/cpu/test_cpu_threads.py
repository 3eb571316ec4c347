"""Two threads give the text of one: `make test` leaves each of its processes only one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from core import LLM, SamplingParams

PROMPTS = [list(range(3, 103)), list(range(200, 240)), [7, 8, 9]]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_threads_give_the_text_of_one(
    make_llama: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """Of a model that is wide enough for torch to share out its matrices, in chunks of 64 tokens."""
    folder = make_llama(hidden_size=512, intermediate_size=1024, initializer_range=0.05)
    found = []
    for num in (1, 2):
        monkeypatch.setenv("OMP_NUM_THREADS", str(num))
        options = {"dtype": dtype, "max_num_batched_tokens": 64, "max_model_len": 256, "num_kv_blocks": 64}
        with LLM(str(folder), device="cpu", **options) as llm:
            outputs = llm.generate(PROMPTS, SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True))
            found.append([output.token_ids for output in outputs])
    assert found[0] == found[1]
