"""Draft layers and draft models in the engine: what they foretell is what it must be, and it changes no id."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from core import LLM, ConfigError, EngineConfig, SamplingParams
from core.engine.build import assemble
from core.engine.llm import RequestOutput
from core.engine.models import find_model
from core.speculate.choice import HeadsChoice, parse_speculative
from core.speculate.drafting import SequenceDrafts
from core.speculate.following import Following
from core.speculate.heads import load_heads
from core.speculate.lengths import Lengths
from tests.conftest import write_llama
from tests.core.engine.oracle import reference
from tests.core.engine.test_drafts import CASES, GREEDY, MIXED, check_same, serve
from tests.core.model.mtp_twin import Twin
from tests.core.speculate.random_heads import write_heads
from tests.models.tiny import read_raw, write_family
from tests.plugins import install_hostile
from tests.shares import quick_of

DRAFTERS = ("mtp", "model")
NUM_LAYERS, NUM_DRAFTS = 2, 4  # the last layer is used again
TIE = 1e-4
SHARED = [3 + 7 * i % 380 for i in range(32)]
ENDS = [[9, 41, 3, 88, 14], [250, 1, 60, 5, 77], [250, 1, 60, 5, 12]]  # the last one: the same as far as drafts look
TEXTS = [[7, 300, 2, 91, 5, 5, 64, 210, 33, 8, 120, 17, 250, 77, 9, 41, 3], [250, 1], [88, 14, 6, 90, 31, 200]]


@pytest.fixture(scope="module", params=quick_of(["llama", "qwen3", "gemma3"], "llama", "gemma3"))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("foretell") / request.param
    return write_llama(folder) if request.param == "llama" else write_family(folder, request.param)


@pytest.fixture(scope="module")
def greedy(tiny_llama_dir: Path) -> list[RequestOutput]:
    """Without drafts, as `mixed`."""
    return serve(tiny_llama_dir, GREEDY)[0]


@pytest.fixture(scope="module")
def mixed(tiny_llama_dir: Path) -> list[RequestOutput]:
    return serve(tiny_llama_dir, MIXED)[0]


@pytest.fixture(params=DRAFTERS)
def drafter(request: pytest.FixtureRequest, tiny_llama_dir: Path, trained: Path) -> str:
    """Draft layers that were trained a little; and the model itself, which is right but for what it never sees."""
    return {"mtp": f"mtp:{trained}", "model": f"model:{tiny_llama_dir}:2"}[request.param]


@pytest.fixture
def all_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also drafts that do not pay."""
    monkeypatch.setattr(Lengths, "choose", lambda self, drafts, *_: [num for _, num in drafts])
    monkeypatch.setattr(Following, "would_pay", lambda *_: True)
    monkeypatch.setattr(Following, "is_lost", lambda *_: False)


@torch.inference_mode()
@pytest.mark.parametrize(
    ("rounds", "options"),
    [
        ([TEXTS], {"pipeline_depth": 0}),
        ([TEXTS], {"max_num_batched_tokens": 13}),
        ([[SHARED + end] for end in ENDS], {}),
    ],
    ids=["whole", "chunks", "shared prefixes"],
)
def test_what_is_foretold(
    model: Path,
    rounds: list[list[list[int]]],
    options: dict[str, Any],
    tmp_path: Path,
    all_tried: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After prompts at all places, after each draw at the first: later ones may rest on drafts that were wrong."""
    heard: list[tuple[list[int], list[int]]] = []
    hear = SequenceDrafts.hear

    def listen(drafts: SequenceDrafts, ids: list[int]) -> None:
        heard.append((list(drafts._token_ids), ids))
        hear(drafts, ids)

    monkeypatch.setattr(SequenceDrafts, "hear", listen)
    heads = write_heads(tmp_path / "heads", model, NUM_LAYERS)
    few = {"dtype": "float32", "block_size": 16, "num_kv_blocks": 40, "max_model_len": 64, "fallback": "allow"}
    with LLM(str(model), device="cpu", speculative=f"mtp:{heads}:{NUM_DRAFTS}", **few, **options) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
        cached = [[output.num_cached for output in llm.generate(texts, params)] for texts in rounds]
        seen = llm.engine.inspect()
    assert seen.num_draft_tokens > 5
    assert rounds == [TEXTS] or cached == [[0], [16], [32]]
    prompts = [text for texts in rounds for text in texts]
    opened = load_heads(heads, find_model(str(model))[0])
    names = opened.source.names()
    twin = Twin({name: opened.source.read(name) for name in names}, read_raw(model), gemma=model.name == "gemma3")
    ids, oracle = opened.draft_ids, reference(str(model))
    num_known = 0
    for text, foretold in heard:
        hidden = oracle.model(torch.tensor([text[:-1]])).last_hidden_state[0]
        num = NUM_DRAFTS if text[:-1] in prompts else 1
        ahead = text
        for k, token in enumerate(foretold[:num], 1):
            number = twin.raw["num_hidden_layers"] + min(k, NUM_LAYERS) - 1
            hidden = twin.layer(f"model.layers.{number}.", ahead[k:], hidden)
            best = twin.logits(hidden[-1], ids).topk(2)
            if best.values[0] - best.values[1] > TIE:
                assert token == ids[best.indices[0]]
                num_known += 1
            ahead = [*ahead, token]
    assert num_known > 5 * len(prompts)


@pytest.mark.parametrize(
    ("drafter", "depth"), quick_of(product(DRAFTERS, (0, 1)), ("mtp", 0), ("model", 1)), indirect=["drafter"]
)
def test_greedy(tiny_llama_dir: Path, greedy: list[RequestOutput], drafter: str, depth: int, all_tried: None) -> None:
    drafted, seen = serve(tiny_llama_dir, GREEDY, speculative=drafter, pipeline_depth=depth)
    check_same(drafted, greedy)
    assert min(seen.num_accepted_at) > 0, "passes after the first one, too"
    assert seen.num_accepted_tokens < seen.num_draft_tokens


@pytest.mark.parametrize(
    ("drafter", "case"),
    quick_of(
        product(DRAFTERS, CASES), ("mtp", "depth 1"), ("mtp", "swapped"), ("model", "chunks"), ("model", "few rows")
    ),
    indirect=["drafter"],
)
def test_whatever_is_asked(
    tiny_llama_dir: Path, mixed: list[RequestOutput], drafter: str, case: str, all_tried: None
) -> None:
    drafted, seen = serve(tiny_llama_dir, MIXED, speculative=drafter, **CASES[case])
    check_same(drafted, mixed)
    assert seen.num_draft_tokens > 5
    assert (seen.num_preemptions > 0) == ("num_kv_blocks" in CASES[case])


@pytest.mark.heavy
def test_ranks_foretell_together(tiny_llama_dir: Path, greedy: list[RequestOutput], drafter: str) -> None:
    drafted, seen = serve(tiny_llama_dir, GREEDY, speculative=drafter, tensor_parallel_size=2, pipeline_depth=1)
    check_same(drafted, greedy)
    assert seen.num_accepted_tokens > 0


@pytest.mark.parametrize("drafter", quick_of(DRAFTERS, "mtp"), indirect=True)
def test_on_the_impolite_device(
    tiny_llama_dir: Path, drafter: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, all_tried: None
) -> None:
    """INT8 entries, padded shapes, steps that are compiled."""
    install_hostile(monkeypatch, tmp_path)
    few = {"device": "hostile", "block_size": 64, "num_kv_blocks": 20, "max_num_seqs": 2}
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    plain, _ = serve(tiny_llama_dir, params, **few)
    drafted, seen = serve(tiny_llama_dir, params, speculative=drafter, **few)
    assert [output.token_ids for output in drafted] == [output.token_ids for output in plain]
    assert seen.num_accepted_tokens > 0


def test_the_draft_layers_share_the_models_pages(tiny_llama_dir: Path, trained: Path) -> None:
    config = EngineConfig(model=str(tiny_llama_dir), device="cpu", dtype="float32", speculative=f"mtp:{trained}:1")
    [group] = assemble(config).groups
    assert (group.num_layers, group.lookahead) == (4, 1)


def test_what_may_be_asked_for(trained: Path) -> None:
    assert parse_speculative(f"mtp:{trained}") == HeadsChoice(str(trained), 2)
    assert parse_speculative(f"mtp:{trained}:1") == HeadsChoice(str(trained), 1)
    assert parse_speculative(str(HeadsChoice(str(trained), 1))).max_drafts == 1
    for drafts in (0, 33):
        with pytest.raises(ConfigError, match=f"asks for {drafts} drafts: it must be 1 to 32"):
            parse_speculative(f"mtp:{trained}:{drafts}")
    with pytest.raises(ConfigError, match=r"nowhere has no heads.json: give a folder that `core train-mtp` finished"):
        parse_speculative("mtp:nowhere")


def test_heads_of_another_model_are_refused(trained: Path, tmp_path: Path) -> None:
    other = write_llama(tmp_path / "other", num_hidden_layers=4)
    config = EngineConfig(model=str(other), device="cpu", speculative=f"mtp:{trained}")
    with pytest.raises(ConfigError, match="were trained for"):
        assemble(config)
