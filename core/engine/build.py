"""Puts an engine together: device, kernels, plan, model, weights, KV planes.

The order is the contract's: probe, open, kernels, plan, bind, and only then weights. `describe` stops before weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import psutil
import torch

from core.config import EngineConfig, choose_dtype, resolve
from core.engine import pools
from core.engine.canonical import Exchanged
from core.engine.drafters import DeviceDrafter, cost_note, open_drafter
from core.engine.foretell import Foretell
from core.engine.models import find_model, read_config
from core.engine.step_function import StepFunction
from core.engine.transfers import Swapped
from core.errors import ConfigError, PluginError
from core.kernels.bind import KernelSet, Tap
from core.kernels.reference.kv import KVLayout
from core.kernels.row import Implementation
from core.kernels.schemes import QUANTISED
from core.kv.groups import KVGroup
from core.model.layers import Builder, Model
from core.model.packing import Packing
from core.model.source import ModelSource
from core.model.spec import ModelConfig, ModelSpec, Shard
from core.page_counts import with_swap_blocks
from core.plan import Plan
from core.plugin import certificate, loader
from core.plugin.device import Device
from core.plugin.facts import DeviceFacts, Need
from core.plugin.opened import Opened, open_device


@dataclass(frozen=True)
class Ranks:
    """This process among those that split the model; `group` is a torch.distributed process group."""

    shard: Shard = field(default_factory=Shard)
    group: Any = None


@dataclass(frozen=True)
class Assembly:
    """An engine without weights. `formats` names the KV layout of each group, `page_bytes` the size of a page of all
    its layers; `swapped` is for what goes to the host, `exchanged` for what other engines get; both are empty where
    nothing can. `draft_ids` are those that drafts are chosen among, on the host; None: all there are."""

    source: ModelSource
    device: Device
    where: torch.device
    facts: DeviceFacts
    plan: Plan
    kernels: KernelSet
    model: Model
    step: StepFunction
    builder: Builder
    groups: tuple[KVGroup, ...]
    layouts: tuple[KVLayout, ...]
    swapped: tuple[Swapped, ...]
    exchanged: tuple[Exchanged, ...]
    shape: dict[str, str]
    vocab_size: int
    draft_ids: torch.Tensor | None

    @property
    def page_bytes(self) -> tuple[int, ...]:
        return pools.page_bytes(self.groups, self.layouts)

    @property
    def formats(self) -> tuple[str, ...]:
        return tuple(layout.format_id for layout in self.layouts)


def assemble(config: EngineConfig, ranks: Ranks | None = None, tap: Tap | None = None) -> Assembly:
    """Everything up to the weights. Call it on the device's launch thread.

    Raises: ConfigError and PluginError, naming the value and the remedy.
    """
    config.check()
    ranks = ranks or Ranks()
    source, spec = find_model(config.model)
    model_config = read_config(source, spec, config.max_model_len)
    drafter = _drafter(config, source, model_config)
    candidate = loader.choose(loader.discover(), config.device)
    opened = _open(candidate, ranks)
    facts, device, where = opened.facts, opened.device, opened.where
    plan, kernels = _plan(config, facts, model_config, drafter, opened.implementations, tap)
    if plan.batch_invariant and facts.host_memory:
        torch.set_num_threads(1)  # where threads share an operation, the parts depend on its size
    source = drafter.source
    builder = Builder(kernels, ranks.shard, plan.dtype, plan.page_tokens, plan.max_model_len, ranks.group)
    model, packed = _build(spec, model_config, builder, source, plan)
    alone = model_config.kv_groups
    groups, layouts, foretell, costs = _build_drafter(drafter, model, builder, alone, plan)
    in_place = facts.shapes.dynamic or pools.stay_in_place(device, where)
    plan = with_swap_blocks(
        plan,
        config,
        groups=groups,
        page_bytes=pools.page_bytes(groups, layouts),
        in_place=in_place,
        free_bytes=psutil.virtual_memory().available,
    )
    step = StepFunction(model, kernels, groups[: len(alone)], plan, ranks.group, foretell)
    swapped = pools.swapped(kernels, groups, layouts, builder) if any(plan.num_swap_blocks) else ()
    exchanged = pools.exchanged(kernels, groups, layouts, builder) if in_place and ranks.shard.size == 1 else ()
    _check_fallback(plan, facts, kernels)
    device.seed(config.seed)
    return Assembly(
        source=source,
        device=device,
        where=where,
        facts=facts,
        plan=_told(plan, kernels, (*opened.notes, *packed, *costs), candidate),
        kernels=kernels,
        model=model,
        step=step,
        builder=builder,
        groups=groups,
        layouts=layouts,
        swapped=swapped,
        exchanged=exchanged,
        shape=_shape(model_config, drafter.config),
        vocab_size=model_config.vocab_size,
        draft_ids=drafter.draft_ids,
    )


def _drafter(config: EngineConfig, source: ModelSource, model: ModelConfig) -> DeviceDrafter:
    if config.speculative and source.pooling and source.pooling.headless:
        raise ConfigError(
            f"speculative is {config.speculative!r}, and {source.name} gives embeddings alone: leave it out"
        )
    return open_drafter(config.speculative, source, model, config.max_model_len)


def _told(plan: Plan, kernels: KernelSet, notes: tuple[str, ...], candidate: loader.Candidate) -> Plan:
    """The plan with what people want to know of it."""
    return replace(
        plan,
        bindings=kernels.bindings(),
        notes=notes,
        certificate=certificate.status(candidate),
        decided_by={**plan.decided_by, "certificate": "core certify"},
    )


def _open(candidate: loader.Candidate, ranks: Ranks) -> Opened:
    """Open this rank's device."""
    facts = candidate.facts
    assert isinstance(facts, DeviceFacts)
    if ranks.shard.size > facts.count and facts.accelerator:
        raise ConfigError(
            f"tensor_parallel_size is {ranks.shard.size}: this machine has {facts.count} {facts.name} devices"
        )
    opened = open_device(candidate, ranks.shard.rank if facts.count > 1 else 0)
    if facts.host_memory and ranks.shard.size > 1:  # ranks share the processor
        torch.set_num_threads(max(1, torch.get_num_threads() // ranks.shard.size))
    return opened


def _plan(
    config: EngineConfig,
    facts: DeviceFacts,
    model: ModelConfig,
    drafter: DeviceDrafter,
    implementations: Sequence[Implementation],
    tap: Tap | None,
) -> tuple[Plan, KernelSet]:
    def kernels_for(**more: Any) -> KernelSet:
        sizes = {g.head_size for g in model.kv_groups} | drafter.head_sizes
        return KernelSet(
            implementations, config.kernels, Need(batch_invariant=config.batch_invariant, **more), tap, sizes
        )

    # Page sizes follow from what the KV kernels take, and are part of what they must take: ask them first.
    dtype, _ = choose_dtype(config, facts, model.dtype)
    plan = resolve(
        config,
        facts,
        model_dtype=model.dtype,
        model_max_len=model.max_len,
        page_sizes=kernels_for(dtype=dtype, page_tokens=config.block_size).kv_page_sizes(),
        split={**model.split, **drafter.split},
    )
    if tap and plan.replayed_tokens:  # whoever watches kernels wants to see them all
        by = {**plan.decided_by, "replayed_tokens": "kernels are watched, one by one"}
        plan = replace(plan, replayed_tokens=0, decided_by=by)
    drafter.check(plan)
    # Where shapes are compiled, there are as many sequences as logit rows (`core.engine.pack`).
    max_seqs = plan.max_num_logits if plan.shapes.seqs else plan.max_num_seqs
    limits = {"max_seqs": max_seqs, "max_tokens": plan.max_num_batched_tokens}
    return plan, kernels_for(dtype=plan.dtype, page_tokens=plan.page_tokens, **limits)


def _build(
    spec: ModelSpec, config: ModelConfig, builder: Builder, source: ModelSource, plan: Plan
) -> tuple[Model, list[str]]:
    """The model, and what the plan says of weights that could not stay packed."""
    if plan.weights != "packed":
        return spec.build(config, builder), []
    kernels, dtype = builder.kernels, plan.dtype
    native = [scheme for scheme in QUANTISED if kernels.has_native("linear", Need(dtype=dtype, scheme=scheme))]
    packing = Packing(source, builder.shard, native)
    builder.scheme = packing.scheme
    model = spec.build(config, builder)
    return model, list(packing.notes(builder.params.values(), plan.dtype))


def _build_drafter(
    drafter: DeviceDrafter, model: Model, builder: Builder, alone: tuple[KVGroup, ...], plan: Plan
) -> tuple[tuple[KVGroup, ...], tuple[KVLayout, ...], Foretell | None, list[str]]:
    """All KV groups with their layouts, what foretells, and what the plan says of it. `alone`: groups of the model."""
    others = set(builder.params)
    groups, passes = drafter.build(model, builder)
    layouts = tuple(pools.layout_of(builder.kernels, group, builder) for group in groups)
    if passes is None:
        return groups, layouts, None, []
    own = [param for name, param in builder.params.items() if name not in others]
    foretell = Foretell(passes, drafter.num_passes, builder.kernels, groups, plan)
    return groups, layouts, foretell, [cost_note(own, alone, groups, layouts, plan)]


def _shape(model: ModelConfig, draft: ModelConfig | None = None) -> dict[str, str]:
    """What KV entries depend on beside weights, by name."""
    limits = {"max_len", "dtype", "split"}  # of engines, not of entries
    names = [field.name for field in fields(model) if field.name not in limits]
    shape = {"family": type(model).__name__, **{name: repr(getattr(model, name)) for name in names}}
    beside = _shape(draft) if draft else {}
    return shape | {f"{name} of the draft model": value for name, value in beside.items()}


def _check_fallback(plan: Plan, facts: DeviceFacts, kernels: KernelSet) -> None:
    missing = kernels.missing_native()
    if missing and plan.fallback == "deny":
        rows = "; ".join(f"{b.row} ({b.reason})" for b in missing)
        raise PluginError(
            f"device {facts.name} has no native kernel for {rows}: allow references with --fallback allow"
        )


def describe(config: EngineConfig) -> Plan:
    """What an engine would be, without loading weights."""
    return assemble(config).plan
