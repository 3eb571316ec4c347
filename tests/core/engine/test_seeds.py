"""batch_invariant: a seed draws the same ids alone, among others, in chunks, preempted, at both depths, and anew."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from core import LLM, SamplingParams

PROMPT = random.Random(1).choices(range(3, 384), k=40)
OTHERS = [random.Random(i).choices(range(3, 384), k=3 + 9 * i) for i in range(2, 10)]
NUM, MANY = 12, 40
SHARED: dict[str, Any] = {"max_tokens": NUM, "ignore_eos": True}
SEEDED = [
    SamplingParams(temperature=1.0, seed=4, **SHARED),
    SamplingParams(temperature=1.0, seed=5, top_p=0.9, top_k=50, **SHARED),
    SamplingParams(temperature=1.0, seed=2**64 - 1, repetition_penalty=1.2, presence_penalty=0.3, min_p=0.01, **SHARED),
]
CASES: dict[str, dict[str, Any]] = {
    "alone": {},
    "together": {"together": True},
    "others": {"num_others": len(OTHERS)},
    "chunks": {"num_others": 3, "max_num_batched_tokens": 17},
    "token by token": {"max_num_batched_tokens": 1},
    "preempted": {"num_others": len(OTHERS), "num_kv_blocks": 16},
    "no prefix cache": {"num_others": 2, "enable_prefix_caching": False},
}


@pytest.fixture(autouse=True, scope="module")
def threads() -> Iterator[None]:
    """The mode runs torch on one thread of this process: put back what was."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def draw(
    model: Path, *, num_others: int = 0, together: bool = False, num: int = NUM, **options: Any
) -> list[list[int]]:
    """The ids of each of SEEDED in an engine of its own making, twice, so that the second finds the first's prefix."""
    settings = {"num_kv_blocks": 200, "max_model_len": 128, "batch_invariant": True, "device": "cpu", **options}
    with LLM(str(model), **settings) as llm:
        found = []
        seeded = [msgspec.structs.replace(one, max_tokens=num) for one in SEEDED]
        groups = [seeded] if together or num_others else [[one] for one in seeded]
        for group in groups * 2:
            prompts = [*OTHERS[:num_others], *[PROMPT] * len(group)]
            outs = llm.generate(prompts, [SEEDED[0]] * num_others + group)
            found.append([out.token_ids for out in outs[num_others:]])
        if settings["num_kv_blocks"] < 200:
            assert llm.engine.scheduler.num_preemptions > 0
    ids = [each for group in found for each in group]
    assert ids[: len(SEEDED)] == ids[len(SEEDED) :]
    return ids[: len(SEEDED)]


@pytest.fixture(scope="module", params=[pytest.param("float32", marks=pytest.mark.heavy), "bfloat16"])
def alone(request, tiny_llama_dir: Path) -> tuple[str, list[list[int]]]:
    ids = draw(tiny_llama_dir, dtype=request.param)
    assert [len(each) for each in ids] == [NUM] * len(SEEDED)
    assert ids[0] != ids[1] != ids[2] != ids[0]
    return request.param, ids


@pytest.mark.parametrize("depth", [pytest.param(0, marks=pytest.mark.heavy), 1])
@pytest.mark.parametrize("case", CASES)
def test_a_seed_draws_the_same(tiny_llama_dir, alone, case, depth):
    dtype, wanted = alone
    assert draw(tiny_llama_dir, dtype=dtype, pipeline_depth=depth, **CASES[case]) == wanted


def test_with_other_kernels_it_does_not(tiny_llama_dir):
    """Else the test above would prove nothing."""
    torchs = {"linear": "cpu", "kv_layout": "cpu"}
    plain = [
        draw(tiny_llama_dir, dtype="bfloat16", batch_invariant=False, kernels=torchs, num=MANY, **CASES[case])
        for case in ("alone", "others")
    ]
    assert plain[0] != plain[1]
