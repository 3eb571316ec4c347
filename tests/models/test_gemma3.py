"""The real weights of Gemma 3 270M: text and tokens equal transformers' on the same file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from core import LLM, SamplingParams
from core.engine.models import find_model
from core.model.convert import convert
from core.model.weights_package import locate_package
from models.packages import core_weights

MODEL = "gemma3-270m"
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time, in a small village by the sea,",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,",
    "Water boils at a temperature of",
]
TEXTS = [
    *PROMPTS,
    "",
    " ",
    "  two  spaces   three,\ttab\n\nlines\n\n\n\n",
    "größer naïve café 你好世界 こんにちは 👍🏽 😀 \u200b",
    "<start_of_turn>user\nHello<end_of_turn>\n<unused7> <b>bold</b> [multimodal]",
    "x = 12345.678e-9; ▁▁ y <0x0A> \x00\x07",
    "The quick brown fox. " * 40,
]
NUM_TOKENS = 24
GUARD = 0.5  # bf16: how far apart the two best logits may be where the text departs


@pytest.fixture(scope="module")
def gguf_path() -> Path:
    return locate_package(next(package for package in core_weights() if package.alias == MODEL))


@pytest.mark.heavy
def test_tokens_equal_transformers(gguf_path: Path) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(gguf_path.parent, gguf_file=gguf_path.name)
    ours = find_model(MODEL)[0].tokenizer()
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs(text)["input_ids"], text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text
    assert ours.decode(ours.encode(TEXTS[8])) == TEXTS[8]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("gemma3") / "float32"
    convert(find_model(MODEL)[0], target, "float32")
    return target


@pytest.fixture(scope="module")
def oracle(folder: Path) -> object:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def wanted(oracle) -> Iterator[list[tuple[list[int], list[int]]]]:
    """Prompts and their greedy continuations; the last prompt crosses the window of 512 tokens."""
    tokenizer = find_model(MODEL)[0].tokenizer()
    runs = []
    for prompt in [*PROMPTS, "One, two, three. " * 110]:
        ids = tokenizer.encode(prompt)
        whole = oracle.generate(
            torch.tensor([ids]), max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        runs.append((ids, whole[0, len(ids) :].tolist()))
    assert len(runs[-1][0]) > 512
    return runs


def greedy(dtype: str, prompts: list[list[int]]) -> list[list[int]]:
    sampling = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    with LLM(MODEL, device="cpu", dtype=dtype, max_num_batched_tokens=200, max_model_len=2048) as llm:
        return [out.token_ids for out in llm.generate(prompts, sampling)]


@pytest.mark.heavy
def test_greedy_text_equals_transformers(wanted):
    assert greedy("float32", [prompt for prompt, _ in wanted]) == [ids for _, ids in wanted]


@pytest.mark.heavy
@torch.inference_mode()
def test_bfloat16_departs_only_at_near_ties(wanted, oracle):
    got = greedy("bfloat16", [prompt for prompt, _ in wanted])
    for (prompt, theirs), mine in zip(wanted, got, strict=True):
        same = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b), None)
        if same is not None:
            logits = oracle(torch.tensor([prompt + theirs[:same]])).logits[0, -1]
            assert logits[theirs[same]] - logits[mine[same]] <= GUARD
