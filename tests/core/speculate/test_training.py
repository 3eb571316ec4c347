"""A whole training of a small model: what it leaves, that it learns, and that heads serve as they were trained."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from core.engine.models import find_model
from core.errors import ConfigError
from core.kernels.bind import KernelSet
from core.model.layers import Builder
from core.model.load import Loader
from core.model.mtp import DraftHeads
from core.model.spec import Shard
from core.plugin import loader
from core.plugin.facts import Need
from core.plugin.opened import open_device
from core.speculate.card import read_card, sha256_of
from core.speculate.heads import load_heads
from core.speculate.recipe import Recipe
from core.speculate.texts import Text
from core.speculate.train import rate, read_history, train
from tests.core.engine.oracle import reference
from tests.core.speculate.small import recipe, silent

PAGE = 16


def test_the_card_says_what_was_made(trained: Path, tiny_llama_dir: Path) -> None:
    card = read_card(trained)
    assert card.weights_sha256 == sha256_of(trained / "heads.safetensors")
    assert (card.num_layers, card.draft_vocab, card.head) == (2, 96, "lm_head.weight")
    assert card.recipe == json.loads(json.dumps(_plain(recipe(tiny_llama_dir))))
    assert card.data["texts"] == 70
    assert card.data["held_out_texts"] == 12
    assert 0 <= min(card.acceptance.per_position) <= max(card.acceptance.per_position) <= 1
    assert 1 < card.acceptance.tokens_per_step <= 3


def _plain(made: Recipe) -> dict[str, object]:
    return {name: getattr(made, name) for name in made.__struct_fields__}


def test_it_learns(trained: Path) -> None:
    history, card = read_history(trained), read_card(trained)
    assert len(history.losses) == 30
    for k in range(2):
        first, last = ([step[k] for step in part] for part in (history.losses[:3], history.losses[-10:]))
        assert sum(last) / 10 < 0.7 * sum(first) / 3
    assert history.judged[-1].per_position == card.acceptance.per_position
    assert [judged.step for judged in history.judged] == list(range(3, 31, 3))


def test_texts_too_short_for_a_layer_teach_it_nothing(tiny_llama_dir: Path, tmp_path: Path) -> None:
    """Of two tokens, the second of which only layer 1 is given."""
    (tmp_path / "short.txt").write_text("#@")
    made = recipe(tiny_llama_dir, num_texts=0, num_held_out=1, files=(str(tmp_path / "short.txt"),), steps=2, batch=1)
    train(made, tmp_path / "out", resume=False, tell=silent)
    losses = read_history(tmp_path / "out").losses
    assert all(first > 0 and second == 0 for first, second in losses), losses


def test_text_files_are_learnt_from_too(tiny_llama_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("the quick brown fox jumps over the lazy dog and then the dog sleeps " * 30)
    made = recipe(tiny_llama_dir, num_texts=0, num_held_out=1, files=(str(tmp_path / "book.txt"),), steps=2, batch=2)
    card = train(made, tmp_path / "out", resume=False, tell=silent)
    assert card.data["files"] == {"book.txt": sha256_of(tmp_path / "book.txt")}
    assert int(str(card.data["texts"])) > 3


@torch.inference_mode()
def test_served_heads_agree_as_often_as_the_card_says(trained: Path, tiny_llama_dir: Path) -> None:
    """By native kernels in one ragged step a text, through `load_heads`, with transformers as the model."""
    source, spec = find_model(str(tiny_llama_dir))
    heads, card = load_heads(trained, source), read_card(trained)
    opened = open_device(loader.choose(loader.discover(), "cpu"))
    kernels = KernelSet(opened.implementations, {}, Need("float32", page_tokens=PAGE, max_seqs=8, max_tokens=64))
    builder = Builder(kernels, Shard(), "float32", PAGE, 64)
    draft = DraftHeads(spec.build(spec.read_config(source.config, 64), builder), builder, 2, card.draft_vocab)
    load = Loader(heads.source, opened.device, opened.where, kernels, dtype="float32", shard=Shard())
    weights = load.load(builder.params)

    places, agree = 0, [0, 0]
    for text in held_out(trained):
        ids, n = torch.tensor(text.ids), len(text.ids)
        whole = reference(str(tiny_llama_dir))(ids[None], output_hidden_states=True)
        best, hidden = whole.logits[0].argmax(-1), whole.hidden_states[-1][0]
        drafts = []
        for k, layer in enumerate(draft.layers, 1):
            hidden = hidden[: n - k]
            hidden = alone(layer, kernels, weights, ids[k:].int(), hidden)
            drafts.append(heads.draft_ids[draft.logits(weights, hidden).argmax(-1)])
        for i in range(text.num_prompt - 1, n - 2):
            places += 1
            right = [int(drafts[k - 1][i]) == int(best[i + k]) for k in (1, 2)]
            agree[0] += right[0]
            agree[1] += all(right)
    assert places == card.acceptance.num_positions
    served = [agree[0] / places, agree[1] / max(1, agree[0])]
    assert served == pytest.approx(card.acceptance.per_position, abs=0.02)


def held_out(trained: Path) -> list[Text]:
    import msgspec

    [path] = (trained / "work").glob("held-out-*.jsonl")
    return [msgspec.json.decode(line, type=Text) for line in path.read_bytes().splitlines()]


def alone(layer: object, kernels: KernelSet, weights: object, ids: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """A draft layer over one text, in pages 1, 2, ..."""
    size, group = len(ids), layer.group  # type: ignore[attr-defined]
    need = Need("float32", group.head_size, PAGE)
    layout = kernels.bind("kv_layout", need)(
        num_kv_heads=group.num_kv_heads, head_size=group.head_size, page_tokens=PAGE, dtype="float32"
    )
    num_pages = -(-size // PAGE)
    planes = tuple(torch.full(shape, torch.nan) for shape in layout.shapes(num_pages + 1))
    edges, table = torch.tensor([0, size]).int(), torch.arange(1, num_pages + 1).int()[None]
    plan = kernels.bind("attn_plan", need)(
        edges, edges[1:], table, num_tokens=size, page_tokens=PAGE, window=group.retain, host=None
    )
    positions = torch.arange(size).int()
    found, _ = layer(weights, ids, hidden, positions, positions + PAGE, plan, planes)  # type: ignore[operator]
    return found


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"num_layers": 0}, "num_layers is 0: it must be at least 1"),
        ({"num_layers": 10}, "num_layers is 10 and row_tokens 40"),
        ({"num_texts": 0}, "nothing to learn from"),
        ({"learning_rate": 2.0}, "learning_rate is 2.0"),
        ({"temperatures": (-0.5,)}, r"temperatures are \[-0.5\]"),
        ({"batch": 71}, "batch is 71 and there are 70 texts"),
        ({"row_tokens": 1000}, "max_model_len is 1000"),
        ({"device": "null"}, "device null computes nothing"),
        ({"files": ("nowhere.txt",)}, "nowhere.txt cannot be read"),
    ],
)
def test_what_cannot_be_trained_is_refused(
    other: dict[str, object], words: str, trained: Path, tiny_llama_dir: Path, tmp_path: Path
) -> None:
    for path in (trained / "work").glob("*.jsonl"):
        (tmp_path / "out" / "work").mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / "out" / "work")
    with pytest.raises(ConfigError, match=words):
        train(recipe(tiny_llama_dir, **other), tmp_path / "out", resume=False, tell=silent)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda out: None, "holds draft heads already"),
        (lambda out: (out / "heads.json").unlink(), "holds an unfinished training: give --resume"),
    ],
)
def test_a_folder_in_use_is_refused(
    change: Callable[[Path], None], words: str, trained: Path, tiny_llama_dir: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained, tmp_path / "out")
    change(tmp_path / "out")
    with pytest.raises(ConfigError, match=words):
        train(recipe(tiny_llama_dir), tmp_path / "out", resume=False, tell=silent)


def test_a_training_goes_on_with_its_own_recipe_only(trained: Path, tiny_llama_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "out")
    (tmp_path / "out" / "heads.json").unlink()
    with pytest.raises(ConfigError, match=r"steps is 31, and the training in .* began with 30"):
        train(recipe(tiny_llama_dir, steps=31), tmp_path / "out", resume=True, tell=silent)


def test_a_training_goes_on_with_its_own_texts_only(trained: Path, tiny_llama_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "out")
    (tmp_path / "out" / "heads.json").unlink()
    [path] = (tmp_path / "out" / "work").glob("learn-*.jsonl")
    path.write_bytes(re.sub(rb'"ids":\[\d+,', b'"ids":[7,', path.read_bytes(), count=1))
    with pytest.raises(ConfigError, match=r"checkpoint.safetensors is of another model or other texts"):
        train(recipe(tiny_llama_dir), tmp_path / "out", resume=True, tell=silent)


def test_an_interrupted_training_ends_the_same(trained: Path, tiny_llama_dir: Path, tmp_path: Path) -> None:
    """Five steps after a checkpoint; `test_killed` kills processes."""

    def tell(stage: str, done: int, total: int) -> None:
        if stage.startswith("training") and done == 25:
            raise KeyboardInterrupt

    (tmp_path / "out" / "work").mkdir(parents=True)
    for path in (trained / "work").glob("*-*"):
        shutil.copy(path, tmp_path / "out" / "work")
    with pytest.raises(KeyboardInterrupt):
        train(recipe(tiny_llama_dir), tmp_path / "out", resume=False, tell=tell)
    train(recipe(tiny_llama_dir), tmp_path / "out", resume=True, tell=silent)
    for name in ("heads.safetensors", "heads.json", "history.json"):
        assert (tmp_path / "out" / name).read_bytes() == (trained / name).read_bytes(), name


def test_rates_rise_and_fall() -> None:
    made = Recipe(model="x", steps=1000, learning_rate=1e-3)
    assert [rate(step, made) for step in (0, 49, 99, 100)] == pytest.approx([1e-5, 5e-4, 1e-3, 1e-3])
    assert rate(550, made) == pytest.approx(5.5e-4)
    assert rate(999, made) == pytest.approx(1e-4, rel=0.01)
