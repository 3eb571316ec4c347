"""The induction model is the one that was shipped, has learnt its tasks, and shows kernels that are wrong."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from conformance.model import SHA256, check_induction, induction_path, train
from conformance.model.data import ECHO, NUM_ECHO_IDS, Sequences, sequences
from conformance.model.llama import Llama, Shape
from core import LLM, ConfigError, SamplingParams
from core.config import EngineConfig
from core.engine.engine import Engine
from core.engine.front import Front
from core.model.rope import RopeConfig, cos_sin_table

PAGE = 16
SHAPE = Shape(256, 512)
REFERENCE = {"attn_plan": "reference", "attn_paged": "reference"}  # whose plan the mutants know
Tap = Callable[[str, Any], Any]


@cache
def data() -> Sequences:
    """25 pages each; the last one is not full."""
    return sequences(seed=0, num=8, length=393)


def forced_logits(tap: Tap | None = None, num: int = 8, **options: Any) -> torch.Tensor:
    """Float32 logits after each token but the last of the first sequences, through the engine: [num, L - 1, V]."""
    rows: list[torch.Tensor] = []

    def record(row: str, kernel: Any) -> Any:
        kernel = tap(row, kernel) if tap else kernel
        if row != "sample":
            return kernel

        def sample(logits: torch.Tensor, *columns: Any, **fixed: Any) -> Any:
            rows.append(logits[columns[-1] == 0].float().clone())  # counter 0: a row that scores the prompt
            return kernel(logits, *columns, **fixed)

        return sample

    options = {"dtype": "float32", "block_size": PAGE, "max_num_seqs": 512, "num_kv_blocks": 40, **options}
    engine = Engine(EngineConfig(model=str(induction_path()), device="cpu", **options), tap=record)
    front = Front(engine.info(), [])
    for number, prompt in enumerate(data().ids_NL[:num].tolist()):
        sampling = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
        engine.add(front.request(prompt, sampling, request_id=str(number)))
        while engine.busy:
            assert all(output.error is None for output in engine.step())
    engine.close()
    return torch.cat(rows).view(num, -1, engine.vocab_size)


@cache
def right() -> torch.Tensor:
    return forced_logits()


def divergence(logits: torch.Tensor) -> float:
    """KL(right, these) in nats, mean over all positions, over the whole vocabulary."""
    found, wanted = (x.double().log_softmax(-1) for x in (logits, right()[: len(logits)]))
    return (wanted.exp() * (wanted - found)).sum(-1).mean().item()


@cache
def noise() -> float:
    """Of bfloat16 through the same engine."""
    return divergence(forced_logits(dtype="bfloat16"))


@cache
def plain_llama() -> Llama:
    model = Llama(SHAPE)
    model.load_state_dict(load_file(induction_path() / "model.safetensors"))
    return model


# The files


def test_the_model_is_the_one_shipped_and_small(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(induction_path(), folder)
    assert {path.name for path in folder.iterdir()} == set(SHA256)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 2e6
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x55")
    with pytest.raises(ConfigError, match=r"model\.safetensors has SHA-256 .*, not 2492e4"):
        check_induction(folder)
    weights.unlink()
    with pytest.raises(ConfigError, match="missing"):
        check_induction(folder)


@pytest.fixture
def threads() -> Iterator[None]:
    """Training sets how many threads torch uses: put back what was."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_training_is_seeded_and_writes_what_is_shipped(
    tmp_path: Path, threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "STAGES", (train.Stage(3, 4, 0, 64, (4, 24)), train.Stage(2, 1, 1, 128, (24, 60))))
    for name in ("a", "b"):
        train.write(train.train(), tmp_path / name)
    for name in SHA256:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    for name in ("config.json", "tokenizer.json"):
        shipped = json.loads((induction_path() / name).read_text())
        assert json.loads((tmp_path / "a" / name).read_text()) == shipped
    assert {n: t.shape for n, t in load_file(tmp_path / "a" / "model.safetensors").items()} == {
        n: t.shape for n, t in plain_llama().state_dict().items()
    }


# The data


def test_sequences_are_the_same_everywhere() -> None:
    digest = hashlib.sha256(sequences(3, 5, 200).ids_NL.astype("<i8").tobytes()).hexdigest()
    assert digest == "502d7051c23a8fc43ef5bac0dd439f43516c325106eb0ad302f9bbc84d817096"
    assert not np.array_equal(sequences(3, 5, 200).ids_NL, sequences(4, 5, 200).ids_NL)


def test_recalls_and_echoes_repeat() -> None:
    found = sequences(5, 9, 300)
    for i, (ids, period, known) in enumerate(zip(found.ids_NL, found.periods_N, found.known_NL, strict=True)):
        assert np.array_equal(ids[period:], ids[:-period])
        assert known.sum() == 300 - period - 1
        if i % 2:
            assert period == ECHO
            assert ids.max() < NUM_ECHO_IDS
        else:
            assert period == [24, 55, 87, 118, 150][i // 2]
            assert ids.min() >= NUM_ECHO_IDS
            assert len(set(ids[:period])) == period


@pytest.mark.parametrize("length", [ECHO, 513])
def test_lengths_that_cannot_be_judged_are_refused(length: int) -> None:
    with pytest.raises(ConfigError, match=f"length is {length}: .* 97 to 512"):
        sequences(0, 2, length)


# The model


@torch.inference_mode()
def test_transformers_and_the_engine_agree_on_it() -> None:
    from transformers import AutoModelForCausalLM

    ids = torch.from_numpy(data().ids_NL)
    peer = AutoModelForCausalLM.from_pretrained(induction_path(), dtype=torch.float32)
    wanted = peer(ids[:, :-1]).logits
    assert (right() - wanted).abs().max() < 1e-4
    assert (plain_llama()(ids[:, :-1]) - wanted).abs().max() < 1e-4


def test_it_continues_a_cycle() -> None:
    cycle = data().ids_NL[0, : data().periods_N[0]].tolist()
    with LLM(str(induction_path()), device="cpu") as llm:
        output = llm.generate(cycle + cycle[:5], SamplingParams(temperature=0.0, max_tokens=len(cycle)))[0]
        assert output.token_ids == cycle[5:] + cycle[:5]
        assert [llm.tokenizer.id_to_token(i) is not None for i in (0, 255, 256)] == [True, True, False]
        assert llm.tokenizer.decode(llm.tokenizer.encode("größer 😀")) == "größer 😀"


@torch.inference_mode()
def test_it_has_learnt_at_every_distance_and_position() -> None:
    found = sequences(seed=1, num=64, length=512)
    ids, known = torch.from_numpy(found.ids_NL), torch.from_numpy(found.known_NL)[:, 1:]
    logits = plain_llama()(ids[:, :-1])
    hits = logits.argmax(-1) == ids[:, 1:]
    for row in range(64):
        assert hits[row][known[row]].float().mean() >= 0.95, (row, found.periods_N[row])
    for first in range(ECHO, 511, PAGE):
        part = slice(first, first + PAGE)
        assert hits[1::2, part][known[1::2, part]].float().mean() >= 0.95, first
    assert {24, 240} <= set(found.periods_N[::2].tolist())
    losses = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(64, -1)
    assert losses[known].mean() < 0.05
    assert losses[1::2][~known[1::2]].mean() < np.log(NUM_ECHO_IDS) + 0.1  # the best there is; chance is log(256)


# Right kernels, and wrong ones


def test_right_kernels_stay_near() -> None:
    """Other kernels, chunks that do not end with pages, and one token at a time."""
    assert divergence(forced_logits(kernels=REFERENCE)) < 1e-6
    assert divergence(forced_logits(max_num_batched_tokens=37)) < 1e-6
    assert 1e-6 < noise() < 1e-3
    assert divergence(forced_logits(dtype="bfloat16", kernels=REFERENCE)) < 2 * noise()
    assert divergence(forced_logits(num=1, dtype="bfloat16", max_num_batched_tokens=1)) < 2 * noise()


def rope_off(row: str, kernel: Any) -> Any:
    """Angles that are 1% too large."""
    table = cos_sin_table(RopeConfig("linear", SHAPE.head_dim, SHAPE.rope_theta, factor=1 / 1.01), 512)
    return (lambda x, rows: kernel(table if x.shape == table.shape else x, rows)) if row == "gather_rows" else kernel


def attending(change: Callable[[torch.Tensor], torch.Tensor], **other: Any) -> Tap:
    """Attention with changed queries, or with other arguments."""

    def tap(row: str, kernel: Any) -> Any:
        return (lambda q, planes, plan: kernel(change(q), planes, plan, **other)) if row == "attn_paged" else kernel

    return tap


def planning(change: Callable[[Any], Any]) -> Tap:
    def tap(row: str, kernel: Any) -> Any:
        return (lambda *args, **fixed: change(kernel(*args, **fixed))) if row == "attn_plan" else kernel

    return tap


def self_hidden(plan: Any) -> Any:
    return plan._replace(tile_positions_MC=plan.tile_positions_MC - 1)


def pages(read: list[int], instead_of: list[int]) -> Tap:
    def change(plan: Any) -> Any:
        pages_MW = plan.tile_pages_MW.clone()
        pages_MW[:, instead_of] = pages_MW[:, read]
        return plan._replace(tile_pages_MW=pages_MW)

    return planning(change)


WRONG = {
    "rope 1% off": rope_off,
    "self key hidden": planning(self_hidden),
    "stale page": pages([3], instead_of=[5]),
    "two pages swapped": pages([4, 5], instead_of=[5, 4]),
    "window of 128": attending(lambda q: q, window=128),
    "query heads in another order": attending(lambda q: q[:, [0, 2, 1, 3]]),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_shows(name: str) -> None:
    assert divergence(forced_logits(WRONG[name], kernels=REFERENCE)) > 20 * noise()
