"""An engine whose weights stay packed against the same engine with dequantised ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from core.errors import ConfigError, PluginError
from core.kernels.bind import REFERENCE
from tests.core.engine.oracle import Recorded, Run
from tests.core.model.conftest import make_gguf  # noqa: F401  a fixture

PROMPTS = [[3 + 7 * i % 380 for i in range(n)] for n in (5, 40, 130)]
BFLOAT16 = 0.25  # of logits that reach 5: each layer rounds differently


@pytest.fixture
def path(tiny_llama_dir: Path, make_gguf: Callable[..., Path]) -> Path:  # noqa: F811
    return make_gguf(tiny_llama_dir, "Q4_1")


def runs(path: Path, **options: object) -> tuple[list[Run], set[str]]:
    """Prompts served together, 6 tokens each, and who multiplied."""
    engine = Recorded(path, device="cpu", num_kv_blocks=60, max_model_len=256, **options)
    try:
        providers = {b.provider for b in engine.engine.plan.bindings if b.row == "linear"}
        return engine.run(PROMPTS, max_tokens=6), providers
    finally:
        engine.close()


def test_the_reference_computes_the_same_bits(path):
    dense, _ = runs(path, dtype="float32")
    packed, providers = runs(path, dtype="float32", weights="packed")
    assert providers == {REFERENCE}
    for one, other in zip(dense, packed, strict=True):
        assert torch.equal(torch.stack(one.logits), torch.stack(other.logits))


@pytest.mark.parametrize(
    ("kind", "ranks", "provider"),
    [
        ("Q4_1", 1, "cpu-native"),
        ("Q4_1", 2, "cpu-native"),
        ("Q4_0", 1, "cpu-native"),
        ("Q8_0", 1, "cpu-native"),
        pytest.param("Q8_0", 2, "cpu-native", marks=pytest.mark.heavy),
        ("Q4_1", 1, "cpu"),
        pytest.param("Q4_1", 2, "cpu", marks=pytest.mark.heavy),
    ],
)
def test_native_kernels_are_as_close_as_bfloat16_is(kind, ranks, provider, tiny_llama_dir, make_gguf):  # noqa: F811
    path = make_gguf(tiny_llama_dir, kind)
    exact, _ = runs(path, dtype="float32")
    options = {"tensor_parallel_size": ranks, "kernels": {"linear": provider}}
    packed, providers = runs(path, dtype="bfloat16", weights="packed", **options)
    assert providers == {provider}
    for one, other in zip(exact, packed, strict=True):
        assert (one.logits[0] - other.logits[0]).abs().max() <= BFLOAT16


def test_what_the_asked_provider_cannot_multiply_is_said(tiny_llama_dir, make_gguf):  # noqa: F811
    path = make_gguf(tiny_llama_dir, "Q8_0")
    with pytest.raises(ConfigError, match=r"can stay so \(13 dequantised: the device has no kernel for q8_0\)"):
        Recorded(path, device="cpu", dtype="bfloat16", weights="packed", kernels={"linear": "cpu"})


def test_refused_by_name(path, tiny_llama_dir):
    with pytest.raises(ConfigError, match=r"no weight of .* can stay so \(13 dequantised: holds float32"):
        Recorded(tiny_llama_dir, device="cpu", weights="packed")
    with pytest.raises(PluginError, match=r"no batch-invariant kernel for linear .*scheme q4_1.*dequantised weights"):
        Recorded(path, device="cpu", weights="packed", dtype="float32", batch_invariant=True)
    with pytest.raises(PluginError, match=r"no native kernel for linear .*float32"):
        Recorded(path, device="cpu", weights="packed", dtype="float32", fallback="deny")
