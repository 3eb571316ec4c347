"""Every family against transformers, as tests/core/engine/test_parity.py does for Llama."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from core.config import EngineConfig
from core.engine.engine import Engine
from core.engine.front import Front
from core.request import SamplingParams
from tests.core.engine.oracle import Recorded, Run, worst_error
from tests.core.engine.test_step_is_rows import VIEWS, trace
from tests.models.tiny import FAMILIES, write_family
from tests.plugins import install_hostile

EXACT = 1e-4
INT8 = 0.12  # as in test_parity
PAGE = 16


def text(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 384) for _ in range(length)]


TEXT = text(0, 150)
OTHERS = [text(i, 5 + 9 * i) for i in range(1, 7)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("families")
    return {family: write_family(root / family, family) for family in FAMILIES}


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Path:
    return folders[request.param]


@pytest.fixture(params=[pytest.param(0, marks=pytest.mark.heavy), 1], ids=["depth0", "depth1"])
def depth(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def open_engine(depth: int) -> Iterator[Callable[..., Recorded]]:
    opened = []

    def make(model: Path, **options) -> Recorded:
        settings = {"device": "cpu", "fallback": "allow", "pipeline_depth": depth, "dtype": "float32"}
        opened.append(Recorded(model, **{**settings, "num_kv_blocks": 100, "max_model_len": 512, **options}))
        return opened[-1]

    yield make
    for engine in opened:
        engine.close()


def check(model: Path, runs: list[Run], bound: float = EXACT) -> None:
    error = worst_error(model, runs)
    assert error <= bound, error


def test_plain(open_engine, model):
    """Every position that windows, pages and their borders make special, and texts beside each other."""
    lengths = [*range(1, 40), 47, 48, 49, 63, 64, 65, 100]
    engine = open_engine(model, enable_prefix_caching=False)
    check(model, [*engine.run([TEXT[:i] for i in lengths]), *engine.run([TEXT], max_tokens=30)])


@pytest.mark.parametrize("chunk", [1, PAGE + 1, pytest.param(PAGE - 1, marks=pytest.mark.heavy)])
def test_chunks(open_engine, model, chunk):
    engine = open_engine(model, enable_prefix_caching=False, max_num_batched_tokens=chunk)
    check(model, engine.run([TEXT[:100], TEXT[:40], OTHERS[0]], max_tokens=4))


def test_prefix_hits(open_engine, model):
    engine = open_engine(model)
    first = engine.run([TEXT], max_tokens=20)
    runs = engine.run([TEXT, TEXT[: PAGE + 1], TEXT + first[0].ids + OTHERS[1], *OTHERS], max_tokens=4)
    assert runs[0].num_cached == (len(TEXT) - 1) // PAGE * PAGE
    assert runs[1].num_cached == PAGE
    assert runs[2].num_cached == (len(TEXT) + 19) // PAGE * PAGE
    check(model, [*first, *runs])


def test_preempted_and_resumed(open_engine, model):
    engine = open_engine(model, num_kv_blocks=9, max_model_len=8 * PAGE)
    runs = engine.run([[3 + i, *TEXT[: 8 + i]] for i in range(8)], max_tokens=60)
    assert engine.engine.scheduler.num_preemptions >= 2
    check(model, runs)


def test_windows_hold_less_than_the_texts(open_engine, folders):
    """Long texts in a window group that holds a part of one, chunk by chunk, beside others and through prefix hits."""
    model = folders["gemma3"]
    engine = open_engine(model, num_kv_blocks=90, max_num_batched_tokens=20, max_num_seqs=2)
    full, window = engine.engine.plan.num_kv_blocks
    assert full == 90
    assert window < 400 // PAGE
    long = text(9, 400)
    runs = [*engine.run([long, TEXT, long[:390]], max_tokens=3), *engine.run([long, TEXT], max_tokens=3)]
    assert [run.num_cached for run in runs[-2:]] == [(len(text) - 1) // PAGE * PAGE for text in (long, TEXT)]
    check(model, runs)


def test_all_layers_with_windows_need_no_pages_for_the_rest(open_engine, folders):
    model = folders["mistral"]
    engine = open_engine(model, num_kv_blocks=13, max_num_batched_tokens=16)
    assert engine.engine.plan.max_model_len == 512
    check(model, engine.run([text(9, 500), TEXT], max_tokens=5))


def test_a_cache_in_int8_with_windows(open_engine, folders, monkeypatch, tmp_path):
    """The impolite device: pages of 64 tokens, buckets, unread entries that are no numbers."""
    install_hostile(monkeypatch, tmp_path / "hostile")
    model = folders["gemma3"]
    engine = open_engine(model, device="hostile", max_num_batched_tokens=63)
    first = engine.run([TEXT, *OTHERS], max_tokens=4)
    again = engine.run([TEXT], max_tokens=4)
    assert again[0].num_cached == 128
    check(model, [*first, *again], INT8)


@pytest.mark.parametrize("depth", [0], indirect=True)
@pytest.mark.parametrize("family", ["gemma3", "phi3"])
@pytest.mark.heavy
def test_two_ranks(open_engine, folders, family, depth):
    """Joined projections are shared one by one, norms of heads by all ranks."""
    engine = open_engine(folders[family], tensor_parallel_size=2, max_num_batched_tokens=30)
    check(folders[family], engine.run([TEXT, *OTHERS[:2]], max_tokens=4))


@pytest.mark.parametrize("device", ["cpu", pytest.param("hostile", marks=pytest.mark.heavy)])
def test_a_step_is_kernels_and_views(model, device, monkeypatch, tmp_path):
    if device == "hostile":
        install_hostile(monkeypatch, tmp_path / "hostile")
    watch = trace(monkeypatch, model, device=device)
    assert set(watch.seen) <= VIEWS, watch.seen


def test_the_device_without_arithmetic_serves_it(model):
    engine = Engine(EngineConfig(model=str(model), device="null", num_kv_blocks=50))
    request = Front(engine.info(), []).request([5, 6, 7], SamplingParams(temperature=0, max_tokens=3), request_id="1")
    engine.add(request)
    ids = [i for _ in range(4) for output in engine.step() for i in output.new_ids]
    engine.close()
    assert ids == [8, 9, 10]
