"""Engines on the simulated chip: the text of the cpu device, whatever the order of things, and no race."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core import LLM, KVEntries, RequestOutput
from tests.core.speculate.random_heads import write_heads
from tests.devices.kunlun.programs import greedy, run

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]
SCHEDULES = ["eager", "lazy", *(f"seed:{i}" for i in range(1, 6))]
MARGIN, TINY_MARGIN = 0.5, 0.1  # of logits: closer ones may change places
ALIKE = 0.7  # of tokens, at least: both sides round to bfloat16
STORIES = [
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time, in a small village by the sea,",
]
SMOLLM2: dict[str, Any] = {"dtype": "bfloat16", "num_kv_blocks": 90, "max_model_len": 256}
NUM = 12


def waves() -> list[list[str]]:
    """Prompts of more than a page, others for each schedule."""
    opening = "Here are a few lines that somebody wrote for the {} time, and did not finish yet, on a grey day. "
    ordinals = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh"]
    return [[opening.format(ordinal) + story for story in STORIES] for ordinal in ordinals]


def of_the_cpu(model: str, prompts: list[Any], num: int, **options: Any) -> list[RequestOutput]:
    with LLM(model, device="cpu", **options) as llm:
        return llm.generate(prompts, greedy(num, logprobs=20))


def check_text(ids: list[int], wanted: RequestOutput, margin: float = MARGIN) -> None:
    """The cpu's text up to where its likeliest tokens are too close for a difference to mean anything."""
    pairs = zip(ids, wanted.token_ids, wanted.logprobs, strict=True)
    departed = next(((i, report) for i, theirs, report in pairs if i != theirs), None)
    if departed:
        chosen, report = departed
        assert chosen in report.top_ids
        assert report.top_logprobs[0] - report.top_logprobs[report.top_ids.index(chosen)] <= margin


def alike(ids: list[int], wanted: RequestOutput) -> int:
    """Tokens before the two depart."""
    same = [i == theirs for i, theirs in zip(ids, wanted.token_ids, strict=True)]
    return (*same, False).index(False)


@pytest.fixture(scope="module")
def wanted() -> list[list[RequestOutput]]:
    made = of_the_cpu("smollm2", [prompt for wave in waves() for prompt in wave], NUM, **SMOLLM2)
    return [made[i : i + len(STORIES)] for i in range(0, len(made), len(STORIES))]


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_smollm2_under_every_schedule(wanted: list[list[RequestOutput]], graphs: bool) -> None:
    """Twice each: the second time the prompts' pages are in the cache."""
    told = run(
        "texts",
        "memory_mib=900",
        graphs=graphs,
        model="smollm2",
        waves=waves(),
        schedules=SCHEDULES,
        num=NUM,
        **SMOLLM2,
    )
    for theirs, (first, again) in zip(wanted, told["found"], strict=True):
        for output, mine, mine_again in zip(theirs, first, again, strict=True):
            check_text(mine["ids"], output)
            check_text(mine_again["ids"], output)
            assert mine_again["cached"] >= 16
    pairs = [
        (a["ids"], b)
        for (a_wave, _), b_wave in zip(told["found"], wanted, strict=True)
        for a, b in zip(a_wave, b_wave, strict=True)
    ]
    assert sum(alike(ids, output) for ids, output in pairs) > ALIKE * NUM * len(pairs)
    assert told["races"] == []
    assert told["num_late_compiles"] == 0
    assert (told["num_compiles"] > 0) == graphs


def test_smollm2_on_three_chips(wanted: list[list[RequestOutput]]) -> None:
    """Nine query heads and three of keys: three ranks, or one."""
    chips = "count=3,memory_mib=900"
    few = {"waves": waves()[:2], "schedules": ["eager", "seed:1"], "num": NUM, "tensor_parallel_size": 3}
    told = run("texts", chips, model="smollm2", **few, **SMOLLM2)
    same = []
    for theirs, times in zip(wanted[:2], told["found"], strict=True):
        for outputs in times:
            for mine, output in zip(outputs, theirs, strict=True):
                check_text(mine["ids"], output)
                same.append(alike(mine["ids"], output))
    assert sum(same) > ALIKE * NUM * len(same)
    assert told["races"] == []
    [refused] = run("refusals", chips, asked=[{"model": "smollm2", "tensor_parallel_size": 2}])
    assert "tensor_parallel_size is 2: it does not divide the model's" in refused
    assert refused.endswith("choose among 1, 3")


def tiny_waves(num: int) -> list[list[list[int]]]:
    rng = random.Random(7)
    return [[rng.choices(range(3, 384), k=k) for k in (40, 9, 70, 17, 33, 55)] for _ in range(num)]


def check_tiny(model: Path, told: Any, waves: list[list[list[int]]], num: int, **options: Any) -> None:
    """Both times, nearly all of it is the cpu's text, and what is not begins where two tokens are nearly as likely."""
    total = same = 0
    for wave, times in zip(waves, told["found"], strict=True):
        wanted = of_the_cpu(str(model), wave, num, **options)
        for outputs in times:
            for mine, theirs in zip(outputs, wanted, strict=True):
                check_text(mine["ids"], theirs, margin=TINY_MARGIN)
                total, same = total + num, same + alike(mine["ids"], theirs)
    assert same > 0.8 * total
    assert told["races"] == []


@pytest.mark.parametrize("swap_space", [0, 0.05], ids=["recompute", "swap"])
def test_preempted_sequences_go_on(make_llama: Callable[..., Path], swap_space: float) -> None:
    """Fewer pages than the sequences need: some are computed again, or go to the host and come back."""
    model, waves = make_llama(head_dim=32), tiny_waves(len(SCHEDULES))
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 128}
    few: dict[str, Any] = {"num_kv_blocks": 19, "swap_space": swap_space, "max_num_batched_tokens": 64}
    told = run("texts", "memory_mib=64", model=str(model), waves=waves, schedules=SCHEDULES, num=24, **options, **few)
    check_tiny(model, told, waves, 24, **options)
    assert told["num_preemptions"] > 0
    assert (told["num_swapped"] > 0) == (told["num_pages_swapped_in"] > 0) == (swap_space > 0)


@pytest.mark.parametrize(
    ("pcie", "share"), [("3e7", (0, 0.2)), ("2e6", (0.5, 1.5)), ("3e5", (3, 20))], ids=["less", "as much", "more"]
)
def test_swapping_hardly_delays_steps(make_llama: Callable[..., Path], pcie: str, share: tuple[float, float]) -> None:
    """In virtual time, where all copies together take less than all steps, as long, or more."""
    wide = {"num_hidden_layers": 8, "head_dim": 128, "num_attention_heads": 4, "num_key_value_heads": 4}
    rng = random.Random(7)
    few: dict[str, Any] = {
        "block_size": 16,
        "num_kv_blocks": 50,
        "swap_space": 0.05,
        "max_model_len": 128,
        "enable_prefix_caching": False,
    }
    told = run(
        "texts",
        f"memory_mib=512,bytes_per_s=1e9,pcie_bytes_per_s={pcie}",
        model=str(make_llama(**wide)),
        waves=[[rng.choices(range(3, 384), k=rng.randrange(8, 31)) for _ in range(20)]],
        schedules=["eager"],
        num=60,
        dtype="float32",
        **few,
    )
    assert told["num_swapped"] > 5
    times = told["times"]
    steps_s, copies_s = times["compute_s"] + times["hbm_s"], times["h2d_s"] + times["d2h_s"]
    assert share[0] < copies_s / steps_s < share[1]
    assert times["all_s"] <= 1.15 * max(steps_s, copies_s)


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
@pytest.mark.parametrize("drafter", ["ngram", "mtp", "model"])
def test_drafts_change_nothing(make_llama: Callable[..., Path], tmp_path: Path, drafter: str, graphs: bool) -> None:
    """Prompts that repeat themselves; and draft layers with random weights, which are hardly ever right."""
    model, rng = make_llama(head_dim=32), random.Random(2)
    waves = [[rng.choices(range(3, 384), k=7) * 3 for _ in range(6)] for _ in SCHEDULES]
    asked = f"mtp:{write_heads(tmp_path / 'heads', model, 2)}" if drafter == "mtp" else "ngram:4"
    asked = f"model:{model}:2" if drafter == "model" else asked
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 128, "num_kv_blocks": 60}
    more = {"waves": waves, "schedules": SCHEDULES, "num": 24, "speculative": asked}
    told = run("texts", "memory_mib=64", graphs=graphs, model=str(model), **more, **options)
    check_tiny(model, told, waves, 24, **options)
    assert told["num_draft_tokens"] > 0
    assert told["num_accepted_tokens"] > 0 or drafter == "mtp"
    assert told["num_late_compiles"] == 0


def test_two_chips_share_a_model(make_llama: Callable[..., Path]) -> None:
    model, waves = make_llama(head_dim=32), tiny_waves(3)
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 128, "num_kv_blocks": 60}
    more = {"schedules": ["eager", "lazy", "seed:1"], "tensor_parallel_size": 2}
    told = run("texts", "count=2,memory_mib=64", model=str(model), waves=waves, num=24, **options, **more)
    check_tiny(model, told, waves, 24, **options)


def test_the_cpu_goes_on_where_the_chip_was(make_llama: Callable[..., Path], tmp_path: Path) -> None:
    """Entries in INT8, through the form that every device knows: found by whoever names them, and by nobody else."""
    model, [[prompt, *_]] = make_llama(head_dim=32), tiny_waves(1)
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 128, "num_kv_blocks": 40}
    told = run("exported", "memory_mib=64", model=str(model), prompt=prompt, path=str(tmp_path / "kv"), **options)
    assert told == 32
    [wanted] = of_the_cpu(str(model), [prompt], 24, **options)
    with LLM(str(model), device="cpu", **options) as llm:
        provenance = llm.import_kv(KVEntries.from_bytes((tmp_path / "kv").read_bytes()))
        [plain] = llm.generate([prompt], greedy(24))
        [resting] = llm.generate([prompt], greedy(24, kv_provenance=provenance))
    assert plain.num_cached == 0
    assert plain.token_ids == wanted.token_ids
    assert resting.num_cached == told
    check_text(resting.token_ids, wanted, TINY_MARGIN)


def test_what_the_ops_do_not_take_is_refused_before_weights_load(
    tiny_llama_dir: Path, make_llama: Callable[..., Path]
) -> None:
    """Heads of 16 numbers; and more sequences than attention takes in a call."""
    asked = [{"model": str(tiny_llama_dir)}, {"model": str(make_llama(head_dim=32)), "max_num_seqs": 1025}]
    heads, sequences = run("refusals", "1", asked=asked)
    assert "no native kernel for attn_paged (kunlun: head_size 16 is not among" in heads
    assert "no native kernel for attn_paged (kunlun: sequences 1025 is over 1024)" in sequences
