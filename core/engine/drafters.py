"""What `--speculative` adds to an engine on the device: tensors, KV groups, and what foretells.

Owns how draft layers and draft models come into an engine; drafters on the host add nothing. Refuses what cannot draft
for the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from core.engine import pools
from core.engine.models import find_model, read_config
from core.engine.passes import LayerPasses, ModelPasses, Passes
from core.errors import ConfigError
from core.kernels.reference.kv import KVLayout
from core.kv.groups import KVGroup
from core.model.layers import Builder, Model, Param
from core.model.load import weight_bytes
from core.model.mtp import DraftHeads, check_family, with_draft_layers
from core.model.source import ModelSource
from core.model.spec import ModelConfig, ModelSpec
from core.plan import Plan
from core.speculate.choice import HeadsChoice, ModelChoice, parse_speculative
from core.speculate.draft_model import PREFIX, WithDraftModel, check_vocabulary, check_writes
from core.speculate.heads import Heads, load_heads

Built = tuple[tuple[KVGroup, ...], Passes | None]


@dataclass(frozen=True)
class DeviceDrafter:
    """What runs on the device beside the model, not built yet.

    source      the model's tensors, and its own
    build       declares its parameters and binds its kernels: (model, its builder) -> all KV groups, those of the model
                first, and the passes; None where nothing foretells
    num_passes  that there are
    draft_ids   those that it chooses among, on the host; None: all
    config      of a draft model
    """

    source: ModelSource
    build: Callable[[Model, Builder], Built]
    num_passes: int = 0
    draft_ids: torch.Tensor | None = None
    config: ModelConfig | None = None

    @property
    def head_sizes(self) -> set[int]:
        """Of its own KV groups."""
        return {group.head_size for group in self.config.kv_groups} if self.config else set()

    @property
    def split(self) -> Mapping[str, int]:
        """What tensor parallelism must divide, by name."""
        split = self.config.split if self.config else {}
        return {f"{name}, in its draft model": count for name, count in split.items()}

    def check(self, plan: Plan) -> None:
        """Raises: ConfigError for a draft model that was made for shorter texts than are served."""
        if self.config and self.config.max_len < plan.max_model_len:
            raise ConfigError(
                f"the draft model of {plan.speculative} was made for {self.config.max_len} tokens, and max_model_len "
                f"is {plan.max_model_len}: ask for --max-model-len {self.config.max_len}, or give another draft model"
            )


def open_drafter(
    speculative: str | None, source: ModelSource, config: ModelConfig, max_len: int | None = None
) -> DeviceDrafter:
    """What `speculative` names, for the model with these files and this config; files are opened, weights are not read.

    max_len   as asked for

    Raises: ConfigError for what cannot draft for the model.
    """
    match parse_speculative(speculative) if speculative else None:
        case HeadsChoice(path, num):
            heads = load_heads(Path(path), source)
            return DeviceDrafter(heads.source, partial(_build_layers, heads, num), num, heads.draft_ids)
        case ModelChoice(path, num):
            draft, spec = find_model(path)
            check_writes(draft)
            own = read_config(draft, spec, max_len)
            check_vocabulary(source, config, draft, own)
            build = partial(_build_model, spec, own, config.kv_groups, num)
            return DeviceDrafter(WithDraftModel(source, draft), build, num, config=own)
        case _:
            return DeviceDrafter(source, lambda model, builder: (config.kv_groups, None))


def _build_layers(heads: Heads, num: int, model: Model, b: Builder) -> Built:
    layers = DraftHeads(model, b, min(num, heads.card.num_layers), heads.card.draft_vocab)
    groups, place = with_draft_layers(check_family(model).config, num)
    return groups, LayerPasses(layers, place, b)


def _build_model(
    spec: ModelSpec, config: ModelConfig, others: tuple[KVGroup, ...], num: int, model: Model, b: Builder
) -> Built:
    """`others`: the groups of the model that is drafted for."""
    draft = spec.build(config, replace(b, prefix=PREFIX))
    groups = (replace(group, num_layers=group.num_layers * num, lookahead=num) for group in config.kv_groups)
    return (*others, *groups), ModelPasses(draft, config.kv_groups, len(others))


def cost_note(
    own: Iterable[Param], alone: Sequence[KVGroup], groups: Sequence[KVGroup], layouts: Sequence[KVLayout], plan: Plan
) -> str:
    """What drafts cost this rank in memory.

    own      parameters of what foretells
    alone    KV groups of the model without it; `groups`: all, with their `layouts`
    """
    model, both = (sum(pools.page_bytes(some, layouts[: len(some)])) // plan.page_tokens for some in (alone, groups))
    mib, more = weight_bytes(own, plan.dtype) / 2**20, both - model
    return f"drafts take {mib:,.1f} MiB of weights, and {more:,} bytes of KV a token; the model's are {model:,}"
