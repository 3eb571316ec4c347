"""Draft layers beside their twin in float64, for families with different blocks, by references and native kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import torch

from core.engine.models import find_model
from core.errors import ConfigError
from core.kernels.bind import KernelSet, Tap
from core.model.layers import Builder
from core.model.load import Loader
from core.model.mtp import DraftHeads, DraftLayer
from core.model.source import ModelSource
from core.model.spec import Shard
from core.plugin import loader
from core.plugin.facts import Need
from core.plugin.opened import Opened, open_device
from core.speculate.heads import WithHeads
from tests.conftest import write_llama
from tests.core.engine.test_step_is_rows import VIEWS, Watch
from tests.core.model.mtp_twin import Twin
from tests.models.tiny import read_raw, write_family

FAMILIES = ("llama", "qwen3", "gemma3")
PAGE, PAGES, NUM_LAYERS = 16, 9, 3
TEXTS = [[7, 300, 2, 91, 5, 5, 64, 210, 33, 8, 120, 17, 250, 77, 9, 41, 3, 66, 199, 12], [250, 1, 88, 14, 6, 90, 31]]
TABLE = [[5, 2], [8, 1]]
DRAFT_IDS = torch.tensor([2, 3, 5, 8, 64, 91, 200, 383], dtype=torch.int32)


@pytest.fixture(scope="module")
def cpu() -> Opened:
    return open_device(loader.choose(loader.discover(), "cpu"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("mtp")
    return {name: write_llama(root / name) if name == "llama" else write_family(root / name, name) for name in FAMILIES}


@dataclass
class Drafting:
    """A model's draft heads with random weights, run on ragged steps; the cache stays from step to step."""

    heads: DraftHeads
    weights: dict[str, Any]
    kernels: KernelSet
    source: ModelSource

    def __post_init__(self) -> None:
        self.planes = []
        for group in self.heads.groups:
            make = self.kernels.bind("kv_layout", Need("float32", group.head_size, PAGE))
            layout = make(num_kv_heads=group.num_kv_heads, head_size=group.head_size, page_tokens=PAGE, dtype="float32")
            self.planes.append(tuple(torch.full(shape, torch.nan) for shape in layout.shapes(PAGES)))

    def run(self, texts: list[list[int]], hidden: list[torch.Tensor], starts: list[int], ends: list[int]) -> list[Any]:
        """[layer][text] -> hidden states of the positions from `starts` to `ends` of each text, in one step."""
        counts = [end - start for start, end in zip(starts, ends, strict=True)]
        positions = torch.cat([torch.arange(s, e) for s, e in zip(starts, ends, strict=True)]).int()
        slots = torch.cat(
            [torch.tensor([TABLE[r][p // PAGE] * PAGE + p % PAGE for p in range(starts[r], ends[r])]) for r in (0, 1)]
        ).int()
        edges = torch.tensor([0, counts[0], sum(counts)]).int()
        x, found = torch.cat([h[s:e] for h, s, e in zip(hidden, starts, ends, strict=True)]), []
        for k, layer in enumerate(self.heads.layers, 1):
            bind = self.kernels.bind("attn_plan", Need("float32", layer.group.head_size, PAGE))
            plan = bind(
                edges, torch.tensor(ends).int(), torch.tensor(TABLE).int(),
                num_tokens=sum(counts), page_tokens=PAGE, window=layer.group.retain, host=None,
            )  # fmt: skip
            ids = torch.cat(
                [torch.tensor((t + [0] * k)[s + k : e + k]) for t, s, e in zip(texts, starts, ends, strict=True)]
            )
            x, self.planes[k - 1] = layer(self.weights, ids.int(), x, positions, slots, plan, self.planes[k - 1])
            found.append(list(x.split(counts)))
        return found


def draft(
    folder: Path,
    device: Opened,
    *,
    native: bool,
    vocab: int | None = len(DRAFT_IDS),
    shard: Shard | None = None,
    width: int = 128,
    tap: Tap | None = None,
) -> Drafting:
    """`width`: columns of the projections in the file."""
    shard = shard or Shard()
    source, spec = find_model(str(folder))
    need = Need("float32", page_tokens=PAGE, max_seqs=8, max_tokens=64)
    kernels = KernelSet(device.implementations if native else (), {}, need, tap)
    builder = Builder(kernels, shard, "float32", PAGE, 128)
    model = spec.build(spec.read_config(source.config, 128), builder)
    before = set(builder.params)
    heads = DraftHeads(model, builder, NUM_LAYERS, vocab)
    tensors: dict[str, torch.Tensor] = {}
    for name, param in builder.params.items():
        if name in before or name == "draft_head":
            continue
        for s in param.sources:
            twin = like(s.name)
            shape = (64, width) if s.columns else source.shape(twin) if twin in source.names() else param.shape
            centre = 0.0 if len(param.shape) > 1 or s.name.endswith("bias") or param.add else 1.0
            random = torch.Generator().manual_seed(crc32(s.name.encode()))  # ranks have other parameters
            tensors[s.name] = torch.empty(shape).normal_(centre, 0.1, generator=random)
    whole = WithHeads(source, tensors, DRAFT_IDS, head_name(source))
    load = Loader(whole, device.device, device.where, kernels, dtype="float32", shard=shard)
    return Drafting(heads, load.load(builder.params), kernels, whole)


def like(name: str) -> str:
    """The tensor of the model that one of a draft layer has the shape of; layer 2 sees everything in each family."""
    return "model.layers.2." + name.split(".", 3)[3]


def head_name(source: ModelSource) -> str:
    return "lm_head.weight" if "lm_head.weight" in source.names() else "model.embed_tokens.weight"


def states(size: int) -> list[torch.Tensor]:
    torch.manual_seed(2)
    return [torch.randn(len(text), size) for text in TEXTS]


@pytest.fixture(params=[(f, n) for f in FAMILIES for n in (False, True)], ids=lambda p: f"{p[0]}-{p[1]}")
def made(request: pytest.FixtureRequest, cpu: Opened, folders: dict[str, Path]) -> tuple[Drafting, Twin]:
    family, native = request.param
    drafting = draft(folders[family], cpu, native=native)
    base = {name: drafting.source.read(name) for name in drafting.source.names()}
    return drafting, Twin(base, read_raw(folders[family]), gemma=family == "gemma3")


@torch.inference_mode()
def test_a_whole_sequence_equals_the_paper(made: tuple[Drafting, Twin]) -> None:
    drafting, twin = made
    hidden = states(64)
    found = drafting.run(TEXTS, hidden, [0, 0], [len(t) for t in TEXTS])
    for row, text in enumerate(TEXTS):
        for k, wanted in enumerate(twin.run(text, hidden[row], NUM_LAYERS), 1):
            got = found[k - 1][row][: len(text) - k]
            torch.testing.assert_close(got.double(), wanted, atol=1e-4, rtol=1e-4)
            logits = drafting.heads.logits(drafting.weights, got)
            torch.testing.assert_close(logits.double(), twin.logits(wanted, DRAFT_IDS), atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_chunks_equal_the_whole(made: tuple[Drafting, Twin]) -> None:
    """A layer's cache holds what its later positions read: every layer's own part, layer by layer."""
    drafting, _ = made
    hidden, ends = states(64), [len(t) for t in TEXTS]
    whole = drafting.run(TEXTS, hidden, [0, 0], ends)
    first = drafting.run(TEXTS, hidden, [0, 0], [13, 4])
    second = drafting.run(TEXTS, hidden, [13, 4], ends)
    for k in range(NUM_LAYERS):
        for row in (0, 1):
            chunks = torch.cat((first[k][row], second[k][row]))
            torch.testing.assert_close(chunks, whole[k][row], atol=1e-5, rtol=1e-4)


@torch.inference_mode()
def test_layers_are_kernels_and_views(cpu: Opened, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()

    def watched(method: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            with watch:
                return method(*args)

        return run

    for owner, name in ((DraftLayer, "__call__"), (DraftHeads, "logits")):
        monkeypatch.setattr(owner, name, watched(getattr(owner, name)))
    drafting = draft(folders["gemma3"], cpu, native=True, tap=watch.tap)
    hidden = states(64)
    found = drafting.run(TEXTS, hidden, [0, 0], [len(t) for t in TEXTS])
    drafting.heads.logits(drafting.weights, found[-1][0])
    assert watch.num_calls > 30
    assert set(watch.seen) <= VIEWS, watch.seen
    assert watch.seen, "the watch saw nothing at all"


def test_groups_look_ahead_and_keep_what_the_block_keeps(cpu: Opened, folders: dict[str, Path]) -> None:
    heads = draft(folders["gemma3"], cpu, native=False).heads
    assert [(g.num_layers, g.lookahead, g.retain) for g in heads.groups] == [(1, 1, None), (1, 2, None), (1, 3, None)]


def test_the_last_layer_goes_on(cpu: Opened, folders: dict[str, Path]) -> None:
    heads = draft(folders["llama"], cpu, native=False).heads
    assert [heads.layers.index(heads.layer(number)) for number in (1, 2, 3, 4, 7)] == [0, 1, 2, 2, 2]


@torch.inference_mode()
def test_without_a_draft_vocabulary_the_models_head_is_used(cpu: Opened, folders: dict[str, Path]) -> None:
    whole = draft(folders["gemma3"], cpu, native=False, vocab=None)
    part = draft(folders["gemma3"], cpu, native=False)
    hidden = states(64)[0]
    logits = whole.heads.logits(whole.weights, hidden)
    assert logits.shape == (len(hidden), 384)
    torch.testing.assert_close(logits[:, DRAFT_IDS.long()], part.heads.logits(part.weights, hidden))


def test_ranks_share_blocks_and_all_have_the_projection(cpu: Opened, folders: dict[str, Path]) -> None:
    whole = draft(folders["qwen3"], cpu, native=False)
    for rank in (0, 1):
        part = draft(folders["qwen3"], cpu, native=False, shard=Shard(rank, 2))
        for name in ("layers.4.eh_proj.e.weight", "layers.5.eh_proj.h.weight"):
            assert torch.equal(part.weights[name], whole.weights[name])
        rows = slice(rank * 4, rank * 4 + 4)
        assert torch.equal(part.weights["draft_head"], whole.weights["draft_head"][rows])
        assert len(part.weights["layers.6.gate_up.weight"]) == 96


def test_a_projection_that_is_too_narrow_is_refused(cpu: Opened, folders: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match=r"model.layers.4.eh_proj.weight of shape \(64, 100\) does not fit"):
        draft(folders["qwen3"], cpu, native=False, width=100)


def test_other_models_are_refused(cpu: Opened) -> None:
    model: Callable[..., Any] = lambda *_: None  # noqa: E731
    with pytest.raises(ConfigError, match=r"blocks of a decoder, and function is none"):
        DraftHeads(model, Builder(KernelSet((), {}, Need()), Shard(), "float32", PAGE, 128), 1)
