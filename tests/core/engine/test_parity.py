"""The whole engine against transformers: the same logits wherever a token is computed, however it is scheduled."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from core.errors import ConfigError
from tests.core.engine.oracle import Recorded, Run, reference, worst_error
from tests.plugins import BARE_PLUGIN, install_hostile, install_plugin

EXACT = 1e-4
INT8 = 0.12  # tiny random weights, logits of about 1: what symmetric INT8 keys and values cost at most
TEXT = random.Random(0).choices(range(3, 384), k=150)
OTHERS = [random.Random(i).choices(range(3, 384), k=5 + 7 * i) for i in range(1, 9)]


@pytest.fixture(params=["cpu", "bare", "hostile"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """In-tree CPU, a plugin with the four mandatory methods alone, and the impolite one."""
    if request.param == "bare":
        install_plugin(monkeypatch, tmp_path / "bare", "bare", BARE_PLUGIN)
    if request.param == "hostile":
        install_hostile(monkeypatch, tmp_path / "hostile")
    return str(request.param)


@pytest.fixture(params=[0, pytest.param(1, marks=pytest.mark.heavy)], ids=["depth0", "depth1"])
def depth(request: pytest.FixtureRequest) -> int:
    """The quick tests of test_families.py run at the other depth."""
    return int(request.param)


@pytest.fixture
def open_engine(device: str, depth: int, tiny_llama_dir: Path) -> Iterator[Callable[..., Recorded]]:
    opened = []

    def make(model: Path = tiny_llama_dir, **options) -> Recorded:
        settings = {"device": device, "fallback": "allow", "pipeline_depth": depth, "dtype": "float32"}
        opened.append(Recorded(model, **{**settings, "num_kv_blocks": 100, **options}))
        return opened[-1]

    yield make
    for engine in opened:
        engine.close()


def check(device: str, model: Path, runs: list[Run]) -> None:
    error = worst_error(model, runs)
    assert error <= (INT8 if device == "hostile" else EXACT), error


def test_every_position_alone(open_engine, device, tiny_llama_dir):
    engine = open_engine(enable_prefix_caching=False)
    runs = [engine.run([TEXT[:i]])[0] for i in range(1, 71)]
    check(device, tiny_llama_dir, runs)


def test_every_position_together(open_engine, device, tiny_llama_dir):
    runs = open_engine(enable_prefix_caching=False).run([TEXT[:i] for i in range(1, 71)])
    check(device, tiny_llama_dir, runs)


@pytest.mark.parametrize("chunk", [1, 17, *(pytest.param(n, marks=pytest.mark.heavy) for n in (15, 16, 63, 64, 65))])
def test_chunks(open_engine, device, tiny_llama_dir, chunk):
    """A prompt cut into chunks of one token, and of one page and one more or less, beside others."""
    engine = open_engine(enable_prefix_caching=False, max_num_batched_tokens=chunk)
    check(device, tiny_llama_dir, engine.run([TEXT, TEXT[:80], OTHERS[0]], max_tokens=4))


def test_prefix_hits(open_engine, device, tiny_llama_dir):
    engine = open_engine()
    first = engine.run([TEXT], max_tokens=20)
    page = engine.engine.plan.page_tokens
    follow = TEXT + first[0].ids + OTHERS[1]
    runs = engine.run([TEXT, TEXT[: page + 1], follow, *OTHERS], max_tokens=4)
    assert runs[0].num_cached == (len(TEXT) - 1) // page * page
    assert runs[1].num_cached == page
    assert runs[2].num_cached == (len(TEXT) + 19) // page * page
    check(device, tiny_llama_dir, [*first, *runs])


def test_preempted_and_resumed(open_engine, device, tiny_llama_dir):
    page = 64 if device == "hostile" else 16
    engine = open_engine(num_kv_blocks=9 if page == 64 else 20, max_model_len=8 * page if page == 64 else 19 * page)
    prompts = [text[:1] + TEXT[: page - 8 + i] for i, text in enumerate(OTHERS)]
    runs = engine.run(prompts, max_tokens=60)
    assert engine.engine.scheduler.num_preemptions >= 2
    check(device, tiny_llama_dir, runs)


def test_outputs_are_the_same_text(open_engine, device, tiny_llama_dir):
    """Greedy ids equal transformers' generate, alone and batched; an INT8 cache equals its own plain run."""
    engine = open_engine(enable_prefix_caching=False)
    alone = [engine.run([prompt], max_tokens=24)[0] for prompt in OTHERS]
    together = engine.run(OTHERS, max_tokens=24)
    assert [run.ids for run in together] == [run.ids for run in alone]
    if device != "hostile":
        oracle = reference(str(tiny_llama_dir))
        for run in alone:
            wanted = oracle.generate(
                torch.tensor([run.prompt]), max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0
            )[0, len(run.prompt) :]
            assert run.ids == wanted.tolist()


LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
@pytest.mark.parametrize("depth", [0], indirect=True)
@pytest.mark.parametrize(
    "config",
    [
        {"tie_word_embeddings": True},
        {"attention_bias": True, "mlp_bias": True},
        {"head_dim": 24},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1},
        {"rope_parameters": {"rope_theta": 10000.0, **LINEAR}},
        {"rope_parameters": {"rope_theta": 10000.0, **YARN}},
        {"rope_parameters": {"rope_theta": 10000.0, **LLAMA3}},
    ],
    ids=lambda config: next(iter(config.values()))["rope_type"] if "rope_parameters" in config else str(config),
)
def test_variants(open_engine, device, make_llama, config):
    model = make_llama(**config)
    engine = open_engine(model, max_num_batched_tokens=40)
    check(device, model, engine.run([TEXT, *OTHERS], max_tokens=3))


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
@pytest.mark.parametrize("depth", [0], indirect=True)
def test_dynamic_rope_is_refused_where_it_would_change(open_engine, device, make_llama):
    rope = {"rope_theta": 10000.0, "rope_type": "dynamic", "factor": 4.0}
    model = make_llama(rope_parameters=rope, max_position_embeddings=512)
    engine = open_engine(model, max_model_len=512)
    check(device, model, engine.run([TEXT], max_tokens=2))
    long = make_llama(
        "long", rope_parameters={**rope, "original_max_position_embeddings": 128}, max_position_embeddings=512
    )
    with pytest.raises(ConfigError, match="dynamic"):
        open_engine(long, max_model_len=512)


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
@pytest.mark.parametrize("depth", [pytest.param(0, marks=pytest.mark.heavy), 1], indirect=True)
def test_two_ranks(open_engine, device, make_llama):
    """Layers split over two processes that meet through gloo; an odd vocabulary is split unevenly."""
    model = make_llama(vocab_size=385)
    engine = open_engine(model, tensor_parallel_size=2, max_num_batched_tokens=30)
    check(device, model, engine.run([TEXT, *OTHERS[:3]], max_tokens=4))


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
@pytest.mark.parametrize("depth", [0], indirect=True)
@pytest.mark.heavy
def test_ranks_must_divide_the_heads(open_engine, device, tiny_llama_dir):
    with pytest.raises(ConfigError, match="tensor_parallel_size is 3: it does not divide the model's 2 KV heads"):
        open_engine(tensor_parallel_size=3)
