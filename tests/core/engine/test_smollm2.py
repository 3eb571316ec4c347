"""Real weights: the engine's text equals transformers' on the same dequantised weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from core import LLM, SamplingParams
from core.engine.models import find_model
from core.model.convert import convert

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time, in a small village by the sea,",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,",
    "Water boils at a temperature of",
]
NUM_TOKENS = 32
GUARD = 0.5  # bf16: how far apart the two best logits may be where the text departs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("smollm2") / "float32"
    source, _ = find_model("smollm2")
    convert(source, target, "float32")
    return target


@pytest.fixture(scope="module")
def wanted(folder: Path) -> tuple[list[list[int]], list[list[int]], object]:
    """Prompt ids, greedy continuations, and the oracle itself."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompts = [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    outputs = []
    for ids in prompts:
        all_ids = model.generate(
            torch.tensor([ids]), max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        outputs.append(all_ids[0, len(ids) :].tolist())
    return prompts, outputs, model


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("smollm2", device="cpu", dtype="float32", max_num_batched_tokens=24) as opened:
        yield opened


def greedy() -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)


def test_greedy_text_equals_transformers(llm, wanted):
    prompts, outputs, _ = wanted
    assert [llm.tokenizer.encode(prompt) for prompt in PROMPTS] == prompts
    together = llm.generate(PROMPTS, greedy())
    assert [out.token_ids for out in together] == outputs
    again = llm.generate(
        [ids + more for ids, more in zip(prompts, outputs, strict=True)], SamplingParams(temperature=0.0)
    )
    assert all(out.num_cached >= 16 for out in again)


@torch.inference_mode()
@pytest.mark.heavy
@pytest.mark.parametrize("weights", ["dequantised", "packed"])
def test_bfloat16_departs_only_at_near_ties(wanted, weights):
    prompts, outputs, oracle = wanted
    with LLM("smollm2", device="cpu", dtype="bfloat16", weights=weights) as llm:
        got = [out.token_ids for out in llm.generate(prompts, greedy())]
    for prompt, mine, theirs in zip(prompts, got, outputs, strict=True):
        same = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b), None)
        if same is not None:
            logits = oracle(torch.tensor([prompt + theirs[:same]])).logits[0, -1]
            assert logits[theirs[same]] - logits[mine[same]] <= GUARD


def test_what_dequantising_costs_is_said(llm):
    cost, replay = llm.plan.notes
    assert cost == (
        "weights in Q4_1 (210 tensors) and Q8_0 (1 tensors) are dequantised to float32, which takes 421 MiB more"
    )
    assert replay.startswith("steps of few tokens are not replayed, they run kernel by kernel: forward: torch computes")


def test_chat_knows_the_capital_of_france(llm):
    answer = llm.chat([{"role": "user", "content": "Name the capital of France."}], SamplingParams(temperature=0.0))
    assert "Paris" in answer.text
    assert answer.finish_reason == "stop"
