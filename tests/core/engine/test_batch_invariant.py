"""batch_invariant: bitwise the same logits and draws for a request, whatever else is served and however it is cut."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from core import LLM, PluginError, SamplingParams
from tests.core.engine.oracle import Recorded, Run, worst_error
from tests.plugins import install_hostile

PROMPT = random.Random(1).choices(range(3, 384), k=90)
OTHERS = [random.Random(i).choices(range(3, 384), k=3 + 11 * i) for i in range(2, 11)]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """The mode runs torch on one thread of this process: put back what was."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def runs(model: Path, dtype: str, provider: str, invariant: bool) -> list[Run]:
    """One request alone, among others, in chunks of several sizes, and after a prefix hit.

    `provider` has the products and the attention.
    """
    kernels = {"linear": provider, "kv_layout": provider}
    options = {"device": "cpu", "dtype": dtype, "batch_invariant": invariant, "kernels": kernels, "num_kv_blocks": 200}
    found = []
    for chunk in (2048, 1, 17):
        engine = Recorded(model, max_num_batched_tokens=chunk, **options)
        found += engine.run([PROMPT], max_tokens=6)
        found += engine.run([PROMPT, *OTHERS[:3]], max_tokens=6)[:1]  # a hit, beside others
        found += engine.run([*OTHERS, PROMPT], max_tokens=6)[-1:]
        engine.close()
    assert any(run.num_cached for run in found)
    return found


def differing(found: list[Run]) -> int:
    first = torch.stack(found[0].logits)
    return sum(not torch.equal(torch.stack(run.logits), first) for run in found[1:])


@pytest.mark.parametrize(
    ("dtype", "provider"),
    [
        ("float32", "cpu-invariant"),
        pytest.param("bfloat16", "cpu-invariant", marks=pytest.mark.heavy),
        ("bfloat16", "cpu-native"),
    ],
)
def test_logits_are_bitwise_equal(tiny_llama_dir, dtype, provider):
    found = runs(tiny_llama_dir, dtype, provider, invariant=True)
    assert differing(found) == 0
    if dtype == "float32":
        assert worst_error(tiny_llama_dir, found) <= 1e-4


def test_with_other_kernels_they_are_not(tiny_llama_dir):
    """Else the test above would prove nothing."""
    assert differing(runs(tiny_llama_dir, "bfloat16", "cpu", invariant=False)) > 0


def test_seeds_repeat_across_batches_preemption_and_restart(tiny_llama_dir):
    params = SamplingParams(temperature=1.3, top_p=0.9, min_p=0.01, seed=4, max_tokens=40, ignore_eos=True)
    texts = []
    for others, blocks in ((0, 200), (8, 200), (8, 28)):
        options = {"device": "cpu", "batch_invariant": True, "num_kv_blocks": blocks, "max_model_len": 256}
        with LLM(str(tiny_llama_dir), **options) as llm:
            outs = llm.generate([*OTHERS[:others], PROMPT], params)
            texts.append(outs[-1].token_ids)
            if blocks == 28:
                assert llm.engine.scheduler.num_preemptions > 0
    assert texts[0] == texts[1] == texts[2]


def test_a_device_without_such_kernels_is_refused(tiny_llama_dir, monkeypatch, tmp_path):
    install_hostile(monkeypatch, tmp_path / "hostile")
    with pytest.raises(PluginError, match="no batch-invariant kernel for"):
        LLM(str(tiny_llama_dir), device="hostile", batch_invariant=True)
