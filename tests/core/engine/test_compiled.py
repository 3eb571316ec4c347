"""Steps on a device that compiles: which shapes there are, that all are compiled at the start, and what comes after."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from core import LLM, SamplingParams
from core.config import EngineConfig
from core.engine.columns import Columns
from core.engine.engine import Engine
from core.engine.extras import ExtrasPacker
from core.engine.rows import Rows
from core.engine.step import NewSequence, StepPlan
from core.engine.step_input import ShapeKey
from core.errors import DeviceError
from core.plugin import Event
from core.plugin.facts import ShapePolicy
from core.request import MAX_BIAS, Request, Structured
from devices.null.plugin import NullDevice
from tests.core.engine.test_pack import BUCKETS, NUM_ROWS, Workload, bucket, make
from tests.plugins import install_hostile
from tests.shares import quick_of

NUM_FORWARDS = 6 * 4  # tokens 4, 16 and 96, each with 2 and 8 sequences and four widths of block tables
NUM_DRAWS = 2 * (4 + 1)  # for 2 and 8 rows: greedy or not, plain or with extras; and the report


@pytest.fixture(params=quick_of([0, 1], 1), ids=["depth0", "depth1"])
def llm(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_llama_dir: Path
) -> Iterator[LLM]:
    install_hostile(monkeypatch, tmp_path / "hostile")
    with LLM(str(tiny_llama_dir), device="hostile", num_kv_blocks=40, pipeline_depth=request.param) as opened:
        yield opened


# Which shapes there are


def every_key(shapes: ShapePolicy, tokens: int, seqs: int, blocks: int) -> set[ShapeKey]:
    """By trying: every number of tokens, of sequences (each has one token at least), of logit rows, and of pages."""
    found = set()
    for t, s, b in itertools.product(range(1, tokens + 1), range(1, seqs + 1), range(1, blocks + 1)):
        if s <= t:
            num = bucket(s, shapes.seqs)
            found.add(ShapeKey(bucket(t, shapes.tokens), num, bucket(b, shapes.blocks), num, True, 1))
    return found


@pytest.mark.parametrize("limits", [(48, 8, 8), (16, 3, 8), (20, 8, 2), (4, 1, 1), (3, 2, 5)])
@pytest.mark.parametrize("shapes", [BUCKETS, ShapePolicy((2, 48), (1, 2, 4, 8), (1, 8))])
def test_keys_are_those_that_can_come_up(shapes: ShapePolicy, limits: tuple[int, int, int]) -> None:
    tokens, seqs, blocks = limits
    rows = Rows(NUM_ROWS + 1, blocks, 1)
    packer = make(rows, shapes, max_tokens=tokens, max_seqs=seqs, max_blocks=blocks)
    keys = list(packer.shape_keys())
    assert len(keys) == len(set(keys))
    assert set(keys) == every_key(shapes, tokens, seqs, blocks)


@pytest.mark.parametrize("seed", range(5))
def test_a_workload_meets_no_other_keys(seed: int) -> None:
    workload, rows = Workload(seed, 1), Rows(NUM_ROWS + 1, 8, 1)
    packer = make(rows)
    keys = set(packer.shape_keys())
    for _ in range(30):
        plan = workload.plan()
        rows.apply(plan)
        key = packer.pack(plan).key
        assert key._replace(greedy=True, top_k_max=1) in keys
        assert key.top_k_max == (1 if key.greedy else 0)


def test_sizes_without_buckets_have_no_list_of_shapes() -> None:
    assert list(make(Rows(NUM_ROWS + 1, 8, 1), ShapePolicy(tokens=(48,))).shape_keys()) == []
    assert list(make(Rows(NUM_ROWS + 1, 8, 1), ShapePolicy()).shape_keys()) == []


def test_padding_is_a_step_of_nobody() -> None:
    packer = make(Rows(NUM_ROWS + 1, 8, 2))
    for key in packer.shape_keys():
        x = packer.padding(key)
        assert x.key == key
        assert x.query_starts.tolist() == [0] * (key.seqs + 1)
        assert {x.kv_lens.any().item(), x.output_rows.any().item(), x.source_rows.any().item()} == {False}
        for slots, table in zip(x.slots, x.block_tables, strict=True):
            assert set(slots.tolist()) == {-1}
            assert table.shape == (key.seqs, key.blocks)
            assert not table.any()


def extras_of(widest: int | None, **asked: Any) -> Any:
    """Of one row that asks for something, as they are packed with another row that asks for nothing."""
    rows = Rows(3, 4, 1)
    plain = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 1, "prompt_ids": [], "max_tokens": 8, "stop_ids": []}
    new = [NewSequence(1, [5, 6, 7], [[1]], Request(request_id="1", **{**plain, **asked}), 3)]
    new += [NewSequence(2, [8], [[2]], Request(request_id="2", **plain), 1)]
    plan = StepPlan(new, [1, 2], [2, 0], [1, 1], [True, True], [], [False, False], [])
    rows.apply(plan)
    packer = ExtrasPacker(NullDevice(), torch.device("cpu"), rows, 70, widest)
    return packer.pack(Columns(plan, rows, 16), 3)


def test_extras_have_one_shape_where_steps_are_compiled() -> None:
    each = [{"logit_bias": {3: 1.0}}, {"frequency_penalty": 1.0}, {"min_p": 0.5}, {"bad_ids": [[4]]}, {"logprobs": 2}]
    each += [{"logprobs": 0, "logprob_ids": [3, 4]}]
    shapes = set()
    for asked in each:
        e = extras_of(64, **asked)
        shapes.add(str([t.shape for t in (*e.bias, *e.penalties, e.mask, e.min_p, e.named)]))
        assert e.num_logprobs in (None, 20)
        assert [t.shape for t in (e.bias[0], e.penalties[0], e.mask)] == [(3, MAX_BIAS), (3, 64), (3, 3)]
        small = extras_of(None, **asked)
        assert [small.bias, small.penalties, small.mask, small.min_p].count(None) >= 3, "asked for one thing"
    assert len(shapes) == 1
    assert extras_of(64) is None
    assert extras_of(None) is None


# At the start


def test_all_shapes_are_compiled_at_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_llama_dir: Path
) -> None:
    install_hostile(monkeypatch, tmp_path / "hostile")
    told: list[tuple[int, int]] = []
    engine = Engine(
        EngineConfig(model=str(tiny_llama_dir), device="hostile", num_kv_blocks=20),
        compiling=lambda done, total: told.append((done, total)),
    )
    snapshot = engine.inspect()
    engine.close()
    assert told == [(done, NUM_FORWARDS) for done in range(NUM_FORWARDS + 1)]
    assert (snapshot.num_compiles, snapshot.num_late_compiles) == (NUM_FORWARDS + NUM_DRAWS, 0)
    assert snapshot.compile_s > 0


def test_a_device_of_any_shape_compiles_nothing(tiny_llama_dir: Path) -> None:
    told: list[tuple[int, int]] = []
    engine = Engine(
        EngineConfig(model=str(tiny_llama_dir), device="cpu", num_kv_blocks=20),
        compiling=lambda done, total: told.append((done, total)),
    )
    snapshot = engine.inspect()
    engine.close()
    assert (told, snapshot.num_compiles, snapshot.compile_s) == ([], 0, 0)


# Afterwards


def random_sampling(rng: random.Random) -> SamplingParams:
    """Anything that a request may ask for, several at once."""
    asked: dict[str, Any] = {
        "top_k": rng.choice([-1, 1, 7, 300]),
        "top_p": rng.choice([1.0, 0.5]),
        "min_p": rng.choice([0.0, 0.0, 0.1]),
        "presence_penalty": rng.choice([0.0, 0.0, 0.7]),
        "repetition_penalty": rng.choice([1.0, 1.0, 1.2]),
        "logit_bias": rng.choice([{}, {}, {rng.randrange(384): 1.0 for _ in range(9)}]),
        "logprobs": rng.choice([None, None, 0, 3]),
        "prompt_logprobs": rng.choice([None, None, 1]),
        "structured": rng.choice([None, None, None, Structured("regex", "[a-z ]*")]),
    }
    asked["logprob_token_ids"] = () if asked["logprobs"] is None else rng.choice([(), (5,), (6, 7, 8)])
    return SamplingParams(
        temperature=rng.choice([0.0, 0.0, 1.0]), seed=rng.getrandbits(40), max_tokens=rng.randint(1, 9), **asked
    )


def test_no_request_makes_a_step_of_another_shape(llm: LLM) -> None:
    rng = random.Random(0)
    for _ in range(12):
        prompts = [rng.choices(range(3, 384), k=rng.choice([1, 2, 15, 70, 130])) for _ in range(rng.randint(1, 8))]
        llm.generate(prompts, [random_sampling(rng) for _ in prompts])
    snapshot = llm.engine.inspect()
    assert snapshot.num_steps > 50
    assert (snapshot.num_compiles, snapshot.num_late_compiles) == (NUM_FORWARDS + NUM_DRAWS, 0)


SMALLEST = ("forward", 4, 2, 1, 2)


def compiled(llm: LLM) -> dict[Any, Any]:
    """What was compiled, for each shape."""
    return llm.engine.executor.runner._compiled._made  # type: ignore[union-attr]


def forget_a_shape(llm: LLM) -> None:
    """As if the shape of the smallest step had not been among those compiled at the start."""
    del compiled(llm)[SMALLEST]


def test_a_late_shape_is_compiled_counted_and_said(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    wanted = llm.generate([[5, 6]], params)[0].token_ids
    forget_a_shape(llm)
    with caplog.at_level(logging.WARNING):
        assert llm.generate([[5, 6]], params)[0].token_ids == wanted
    snapshot = llm.engine.inspect()
    assert (snapshot.num_compiles, snapshot.num_late_compiles) == (NUM_FORWARDS + NUM_DRAWS + 1, 1)
    [record] = caplog.records
    assert "while requests wait" in record.getMessage()
    assert "('forward', 4, 2, 1, 2) was not among" in record.getMessage()


def test_a_late_shape_is_refused_where_that_was_asked_for(llm: LLM) -> None:
    forget_a_shape(llm)
    llm.engine.executor.runner.compiles.refuse_late = True
    with pytest.raises(DeviceError, match="was not among those that were compiled at the start"):
        llm.generate([[5, 6]], SamplingParams(temperature=0.0, max_tokens=3))
    assert llm.engine.inspect().num_late_compiles == 0
    assert len(llm.generate([[5] * 20], SamplingParams(temperature=0.0, max_tokens=1))[0].token_ids) == 1


class Late(Event):
    """A copy that fails when it is waited for."""

    def synchronize(self) -> None:
        raise RuntimeError("the chip is on fire")


@pytest.mark.parametrize("when", ["at its launch", "afterwards"])
def test_a_step_that_fails_takes_the_cache_along(llm: LLM, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """It was given the KV planes, so the engine ends, and says so, instead of going on with planes that are gone."""
    run = compiled(llm)[SMALLEST]

    def burn(*args: Any) -> Any:
        run(*args)
        raise RuntimeError("the chip is on fire")

    if when == "afterwards":
        monkeypatch.setattr(llm.engine.executor.runner._device, "d2h", lambda dst, src: Late())  # type: ignore[union-attr]
    else:
        compiled(llm)[SMALLEST] = burn
    for _ in range(2):
        with pytest.raises(DeviceError, match="the KV cache went with a step that failed: restart the engine"):
            llm.generate([[5, 6]], SamplingParams(temperature=0.0, max_tokens=3))
