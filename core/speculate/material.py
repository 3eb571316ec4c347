"""What draft heads are trained with: the frozen model, texts and what it makes of them, and the draft vocabulary.

Refuses devices that compute nothing, and those that compile steps: their shapes are not those of training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import torch

from core.config import BATCHED_TOKENS, EngineConfig
from core.engine.build import Assembly, assemble
from core.engine.llm import LLM
from core.engine.models import find_model
from core.errors import ConfigError
from core.model.digest import digest_of
from core.model.mtp import check_family
from core.model.spec import ModelSpec
from core.speculate.card import sha256_of
from core.speculate.recipe import Recipe
from core.speculate.teacher import Traces, trace
from core.speculate.texts import GROUP, Order, Text, read_files, read_texts, write_texts

LOGITS = 2**26
"""Logits of the model that are held at a time, at most (but for those of one row)."""

Tell = Callable[[str, int, int], None]
"""Called with a stage, what is done of it, and what there is in all."""


@dataclass(frozen=True)
class Material:
    """What training rests on.

    digest            of the model; `key`: of the model, its dtype and all texts
    learn, held_out   see `Traces`
    draft_ids         int32, ascending
    data              what a card says of the texts
    """

    assembly: Assembly
    spec: ModelSpec
    digest: str
    key: str
    learn: Traces
    held_out: Traces
    draft_ids: torch.Tensor
    data: dict[str, object]


def gather(recipe: Recipe, work: Path, tell: Tell) -> Material:
    """Have the model write, and run it over all texts; what is in `work` is used again.

    Raises: ConfigError for a device, model, file or batch that this cannot be done with, before anything is computed.
    """
    source, spec = find_model(recipe.model)
    vocab_size = spec.read_config(source.config, recipe.row_tokens).vocab_size
    step_tokens = max(recipe.row_tokens, min(BATCHED_TOKENS, LOGITS // vocab_size))
    assembly = assemble(_config(recipe, step_tokens))
    _check(assembly)
    files = read_files(recipe.files, source.tokenizer().encode, recipe.row_tokens)
    if recipe.num_texts + len(files) < recipe.batch:
        raise ConfigError(
            f"batch is {recipe.batch} and there are {recipe.num_texts + len(files)} texts: lower it, or ask for more"
        )
    digest = digest_of(source)
    learn, held_out = _written(recipe, work, digest, tell)
    learn += files
    traces, keys = [], []
    for name, texts in (("learn", learn), ("held-out", held_out)):
        keys.append(_hash(msgspec.json.encode(texts), digest, assembly.plan.dtype))
        told = partial(tell, f"running the model over {name} texts")
        traces.append(trace(assembly, texts, recipe.row_tokens, work, f"{name}-{keys[-1]}", told))
    ids = frequent(traces[0], vocab_size, recipe.draft_vocab)
    return Material(assembly, spec, digest, "-".join(keys), traces[0], traces[1], ids, _data(recipe, learn, held_out))


def _check(assembly: Assembly) -> None:
    """Raises: ConfigError for a device that does not train, or a family that has no draft layers."""
    facts = assembly.facts
    if not facts.uses_weights:
        raise ConfigError(f"device {facts.name} computes nothing: train on another, such as --device cpu")
    if not facts.shapes.dynamic:
        raise ConfigError(
            f"device {facts.name} takes steps of certain shapes only, which training has not: train on another, such "
            "as --device cpu; the heads then serve on every device"
        )
    check_family(assembly.model)


def _config(recipe: Recipe, step_tokens: int | None = None) -> EngineConfig:
    return EngineConfig(
        model=recipe.model,
        device=recipe.device,
        dtype=recipe.dtype,
        max_model_len=recipe.row_tokens,
        enable_prefix_caching=False,  # what is written in a group must not depend on groups before
        max_num_seqs=GROUP,
        max_num_batched_tokens=step_tokens,
        fallback="allow",
    )


def _written(recipe: Recipe, work: Path, digest: str, tell: Tell) -> tuple[list[Text], list[Text]]:
    """What the model wrote to learn from, and to be held out. There is an engine only while something is missing."""
    learn, held_out = (
        Order(
            num_texts=recipe.num_held_out if held_out else recipe.num_texts,
            row_tokens=recipe.row_tokens,
            temperatures=(0.0,) if held_out else recipe.temperatures,
            seed=recipe.seed,
            held_out=held_out,
        )
        for held_out in (False, True)
    )
    orders = {"learn": learn, "held-out": held_out}
    paths = {
        name: work / f"{name}-{_hash(msgspec.json.encode(order), digest, recipe.dtype)}.jsonl"
        for name, order in orders.items()
    }
    if any(len(read_texts(paths[name], order)) < order.num_texts for name, order in orders.items()):
        with LLM(**msgspec.structs.asdict(_config(recipe))) as llm:
            for name, order in orders.items():
                write_texts(llm, order, paths[name], partial(tell, f"writing {name} texts"))
    return read_texts(paths["learn"], learn), read_texts(paths["held-out"], held_out)


def _hash(content: bytes, *more: str) -> str:
    """What a file of `work` is called by: it is used again for the same content only."""
    return hashlib.sha256(content + " ".join(more).encode()).hexdigest()[:12]


def frequent(traces: Traces, vocab_size: int, most: int) -> torch.Tensor:
    """The `most` ids that the model finds likeliest most often in texts, or that stand there: int32, ascending."""
    places = torch.arange(traces.ids_RL.shape[1])
    real = places < traces.lens_R[:, None]
    counts = torch.bincount(traces.best_RL[real].long(), minlength=vocab_size)
    counts += torch.bincount(traces.ids_RL[real], minlength=vocab_size)
    order = torch.sort(counts, descending=True, stable=True).indices
    return order[:most].sort().values.int()


def _data(recipe: Recipe, learn: Sequence[Text], held_out: Sequence[Text]) -> dict[str, object]:
    return {
        "texts": len(learn),
        "tokens": sum(len(text.ids) for text in learn),
        "held_out_texts": len(held_out),
        "held_out_tokens": sum(len(text.ids) for text in held_out),
        "files": {Path(file).name: sha256_of(Path(file)) for file in recipe.files},
    }
