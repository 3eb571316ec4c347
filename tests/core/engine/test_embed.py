"""Embeddings against transformers: the last token's hidden state, however its prompt is cut, cached and mixed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from core.engine.sequence import Sequence
from core.request import SamplingParams, Structured
from tests.conftest import write_llama
from tests.core.engine.embedding import Server, worst_error
from tests.models.tiny import declare_pooling, write_family
from tests.plugins import BARE_PLUGIN, install_hostile, install_plugin

EXACT = 1e-5
BF16 = 0.03
INT8 = 0.1  # the impolite device keeps keys and values in 8 bits

RNG = random.Random(3)
TEXT = RNG.choices(range(3, 384), k=150)
PROMPTS = [RNG.choices(range(3, 384), k=k) for k in (1, 2, 15, 16, 17, 33, 64, 90)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
OTHERS = [(prompt[::-1], GREEDY) for prompt in PROMPTS[:5]]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By family, and whether embeddings are normalised."""
    root = tmp_path_factory.mktemp("embed")
    raw = {"llama": write_llama(root / "llama"), "qwen3": write_family(root / "qwen3", "qwen3")}
    unit = {"llama": write_llama(root / "llama-unit"), "qwen3": write_family(root / "qwen3-unit", "qwen3")}
    made = {name: declare_pooling(folder, normalize=False) for name, folder in raw.items()}
    return made | {f"{name}-unit": declare_pooling(folder) for name, folder in unit.items()}


@pytest.fixture
def model(models: dict[str, Path]) -> Path:
    return models["llama"]


@pytest.fixture(params=["cpu", "bare", "hostile"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    if request.param == "bare":
        install_plugin(monkeypatch, tmp_path / "bare", "bare", BARE_PLUGIN)
    if request.param == "hostile":
        install_hostile(monkeypatch, tmp_path / "hostile")
    return str(request.param)


@pytest.fixture(params=[pytest.param(0, marks=pytest.mark.heavy), 1], ids=["depth0", "depth1"])
def depth(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def start(depth: int, model: Path) -> Iterator[Callable[..., Server]]:
    started = []

    def make(model: Path = model, **options: Any) -> Server:
        settings = {"device": "cpu", "fallback": "allow", "pipeline_depth": depth, "dtype": "float32"}
        started.append(Server(model, **{**settings, "num_kv_blocks": 100, **options}))
        return started[-1]

    threads = torch.get_num_threads()
    yield make
    for server in started:
        server.engine.close()
    torch.set_num_threads(threads)  # batch_invariant runs on one


@pytest.mark.parametrize("name", ["llama", "llama-unit", "qwen3", "qwen3-unit"])
def test_the_last_hidden_state(start, models, name):
    normalize = name.endswith("unit")
    vectors = start(models[name]).serve([*PROMPTS, TEXT]).vectors
    assert worst_error(models[name], [*PROMPTS, TEXT], vectors, normalize=normalize) <= EXACT
    norms = [np.linalg.norm(vector) for vector in vectors]
    assert all(abs(norm - 1) < 1e-6 for norm in norms) == normalize


def test_the_last_hidden_state_in_bfloat16(start, models):
    vectors = start(models["qwen3-unit"], dtype="bfloat16").serve(PROMPTS).vectors
    error = worst_error(models["qwen3-unit"], PROMPTS, vectors, normalize=True)
    assert EXACT < error <= BF16


def test_beside_requests_for_tokens(start, device, model):
    """Both get what each gets alone, on every device, in chunks."""
    server = start(device=device, max_num_batched_tokens=40, enable_prefix_caching=False)
    alone = [server.serve([], [other]).ids[0] for other in OTHERS]
    assert [len(ids) for ids in alone] == [12] * len(OTHERS)
    together = server.serve([*PROMPTS, TEXT], OTHERS)
    assert together.ids == alone
    error = worst_error(model, [*PROMPTS, TEXT], together.vectors)
    assert error <= (INT8 if device == "hostile" else EXACT), error


@pytest.mark.parametrize("chunk", [1, 15, 17])
def test_a_prompt_longer_than_a_step(start, model, chunk):
    server = start(max_num_batched_tokens=chunk, enable_prefix_caching=False)
    served = server.serve([TEXT, PROMPTS[3]], OTHERS[:1])
    assert worst_error(model, [TEXT, PROMPTS[3]], served.vectors) <= EXACT
    assert server.engine.scheduler.num_steps >= len(TEXT) // chunk


def test_prefixes_are_read_and_written(start, model):
    """What an embedding has computed serves a later embedding and later tokens, and the other way round."""
    server = start()
    cold = server.serve([TEXT])
    hit = server.serve([TEXT, TEXT[:32], TEXT[:33]], [(TEXT, GREEDY)])
    assert [output.num_cached for output in cold.embeds + hit.embeds] == [0, 144, 16, 32]
    assert worst_error(model, [TEXT, TEXT[:32], TEXT[:33]], hit.vectors) <= EXACT
    other = TEXT[::-1]
    server.serve([], [(other, GREEDY)])
    after = server.serve([other])
    assert after.embeds[0].num_cached == 144
    assert worst_error(model, [other], after.vectors) <= EXACT


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_batch_invariant_embeddings_are_bitwise_equal(start, dtype):
    found = []
    for chunk in (2048, 17):
        server = start(batch_invariant=True, dtype=dtype, max_num_batched_tokens=chunk, num_kv_blocks=200)
        served = [server.serve([TEXT]), server.serve([TEXT, *PROMPTS], OTHERS)]
        assert served[1].embeds[0].num_cached == 144
        found += [each.embeds[0].embedding for each in served]
    assert len(set(found)) == 1


def test_preempted_and_resumed(start, model, monkeypatch):
    admitted: list[bool] = []
    for_devices = Sequence.for_devices
    monkeypatch.setattr(Sequence, "for_devices", lambda seq: (admitted.append(seq.embeds), for_devices(seq))[1])
    server = start(num_kv_blocks=20, max_model_len=19 * 16, max_num_batched_tokens=8)
    params = SamplingParams(temperature=0.0, max_tokens=80)
    others = [(prompt[::-1], params) for prompt in PROMPTS[:4]]
    prompts = [TEXT, TEXT[::-1], TEXT[10:140]]
    served = server.serve(prompts, others)
    assert admitted.count(True) > len(prompts), "an embedding was admitted again, after it had to make room"
    assert worst_error(model, prompts, served.vectors) <= EXACT
    assert served.ids == [server.serve([], [other]).ids[0] for other in others]


def test_random_mixtures_with_aborts(start, model):
    """Pages are short, and requests leave at any time."""
    server = start(num_kv_blocks=12, max_model_len=160, max_num_batched_tokens=12, max_num_seqs=4)
    rng, engine = random.Random(5), server.engine
    prompts: dict[str, list[int]] = {}
    vectors: dict[str, np.ndarray] = {}
    aborted: set[str] = set()

    def step() -> None:
        for output in engine.step():
            assert bool(output.embedding) == (output.request_id in prompts)
            if output.embedding:
                vectors[output.request_id] = np.frombuffer(output.embedding, "<f4")

    for number in range(100):
        name = str(number)
        if rng.random() < 0.5:
            prompts[name] = TEXT[: rng.randrange(50)] + rng.choices(range(3, 384), k=rng.randrange(1, 60))
            engine.add(server.front.embed_request(prompts[name], request_id=name, priority=rng.randrange(2)))
        else:
            params = SamplingParams(temperature=rng.randrange(2), seed=number, max_tokens=rng.randrange(1, 70))
            engine.add(server.front.request(PROMPTS[rng.randrange(8)], params, request_id=name))
        if rng.random() < 0.3 and engine.abort(victim := str(rng.randrange(number + 1))) is not None:
            aborted.add(victim)
        for _ in range(rng.randrange(16)):
            step()
    while engine.busy:
        step()
    server.check_nothing_leaked()
    assert engine.scheduler.num_preemptions > 5
    assert aborted & set(prompts)
    assert set(vectors) == set(prompts) - aborted
    assert worst_error(model, [prompts[name] for name in vectors], list(vectors.values())) <= EXACT


def test_abort_in_the_middle_of_a_prompt(start):
    server = start(max_num_batched_tokens=20)
    server.engine.add(server.front.embed_request(TEXT, request_id="a"))
    for _ in range(3):
        assert server.engine.step() == []
    output = server.engine.abort("a")
    assert output is not None
    assert (output.finish_reason, output.embedding) == ("abort", b"")
    while server.engine.busy:
        assert server.engine.step() == []
    server.check_nothing_leaked()
    assert server.serve([TEXT]).embeds[0].num_cached >= 32, "what it had computed is kept"


def test_beside_grammars_and_log_probabilities(start, model):
    """Steps that wait for a mask, and steps that report: rows are told apart."""
    wishes = [
        {"structured": Structured("regex", "[a-z]{12}")},
        {"logprobs": 2, "prompt_logprobs": 1},
        {"temperature": 1.0, "top_k": 7, "seed": 4},
    ]
    others = [
        (PROMPTS[5 + i], SamplingParams(**{"temperature": 0.0, "max_tokens": 12, **w})) for i, w in enumerate(wishes)
    ]
    server = start(max_num_batched_tokens=50, enable_prefix_caching=False)
    alone = [server.serve([], [other]).ids[0] for other in others]
    together = server.serve([TEXT, *PROMPTS], others)
    assert together.ids == alone
    assert worst_error(model, [TEXT, *PROMPTS], together.vectors) <= EXACT


@pytest.mark.parametrize("name", ["llama", "qwen3-unit"])
@pytest.mark.heavy
def test_two_ranks(start, models, name):
    server = start(models[name], tensor_parallel_size=2, max_num_batched_tokens=30)
    served = server.serve([TEXT, *PROMPTS[:3], TEXT], OTHERS[:2])
    error = worst_error(models[name], [TEXT, *PROMPTS[:3], TEXT], served.vectors, normalize=name.endswith("unit"))
    assert error <= EXACT
    assert [len(ids) for ids in served.ids] == [12, 12]


def test_a_prompt_as_long_as_the_model_takes(start, model):
    longest = RNG.choices(range(3, 384), k=512)
    server = start(max_num_batched_tokens=100)
    assert server.engine.plan.max_model_len == 512
    assert worst_error(model, [longest], server.serve([longest]).vectors) <= EXACT


def test_hidden_states_are_copied_where_asked_for_only(start):
    """Of a step with others, the rows of embeddings; of a step without, none."""
    server = start(max_num_seqs=8, enable_prefix_caching=False)
    device = server.engine.executor.runner._device
    shapes: list[tuple[int, ...]] = []
    d2h = device.d2h
    device.d2h = lambda dst, src: (shapes.append(tuple(src.shape)), d2h(dst, src))[1]  # type: ignore[method-assign]
    server.serve([], OTHERS)
    assert {len(shape) for shape in shapes} == {1}, "ids alone"
    shapes.clear()
    server.serve([PROMPTS[3], PROMPTS[4]], OTHERS)
    assert [shape for shape in shapes if len(shape) > 1] == [(3, 64)], "from the first to the last of them"


def test_hidden_states_that_are_no_numbers_end_their_request(model, depth):
    class Spoil:
        """A tap on the norm bound last, which is the one before the head."""

        def __init__(self) -> None:
            self.on, self.num_norms = False, 0

        def __call__(self, row: str, kernel: Any) -> Any:
            if row != "add_rms_norm":
                return kernel
            self.num_norms += 1
            mine = self.num_norms

            def call(*args: Any, **fixed: Any) -> Any:
                y, total = kernel(*args, **fixed)
                if self.on and mine == self.num_norms:
                    y[0, 5] = float("inf")
                return y, total

            return call

    spoil = Spoil()
    server = Server(model, spoil, device="cpu", dtype="float32", pipeline_depth=depth, num_kv_blocks=50)
    for self_on, error in ((True, "the model's hidden states are not numbers"), (False, None)):
        spoil.on = self_on
        server.engine.add(server.front.embed_request(TEXT, request_id="a"))
        outputs = []
        while server.engine.busy:
            outputs += server.engine.step()
        assert [(output.error, output.num_cached, bool(output.embedding)) for output in outputs] == [
            (error, 0, error is None)
        ]
    server.check_nothing_leaked()
    server.engine.close()


def test_a_kernel_that_fails_ends_it_and_nothing_leaks(model, depth):
    fuse = [0]

    def tap(row: str, kernel: Any) -> Any:
        def call(*args: Any, **fixed: Any) -> Any:
            fuse[0] -= 1
            if fuse[0] == 0:
                raise RuntimeError("the kernel broke")
            return kernel(*args, **fixed)

        return call if row == "put_ids" else kernel

    server = Server(model, tap, device="cpu", dtype="float32", pipeline_depth=depth, max_num_batched_tokens=40)
    for nth in (1, 3, 4):
        fuse[0] = nth
        server.engine.add(server.front.embed_request(TEXT[nth:], request_id="a"))
        outputs = []
        while server.engine.busy:
            outputs += server.engine.step()
        assert [output.error for output in outputs] == ["a step failed: RuntimeError: the kernel broke"]
        server.check_nothing_leaked()
    assert worst_error(model, [TEXT], server.serve([TEXT]).vectors) <= EXACT
    server.engine.close()
