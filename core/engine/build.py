"""Puts an engine together: device, kernels, plan, model, weights, KV planes.

The order is the contract's: probe, open, kernels, plan, bind, and only then weights. `describe` stops before weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from core.config import EngineConfig, choose_dtype, resolve, with_kv_blocks
from core.engine.runner import Runner, StepFunction
from core.errors import ConfigError, PluginError
from core.kernels.bind import KernelSet, Tap
from core.kernels.dtypes import TORCH_DTYPES
from core.kernels.row import Implementation
from core.kv.groups import KVGroup
from core.model.layers import Builder, Model, Planes
from core.model.load import Loader, Progress
from core.model.packing import Packing
from core.model.source import ModelSource, open_source
from core.model.spec import ModelConfig, ModelSpec, Shard
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
    """An engine without weights. `formats` names the KV layout of each group, `page_bytes` the size of a page."""

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
    layouts: tuple[Any, ...]
    vocab_size: int

    @property
    def page_bytes(self) -> tuple[int, ...]:
        """Of one page of all layers, per group."""
        return tuple(g.num_layers * layout.bytes_per_page for g, layout in zip(self.groups, self.layouts, strict=True))

    @property
    def formats(self) -> tuple[str, ...]:
        return tuple(layout.format_id for layout in self.layouts)


def find_model(name: str) -> tuple[ModelSource, ModelSpec]:
    """Open a model and find its family. Raises: ConfigError when either is not to be had."""
    specs = loader.model_specs()
    source = open_source(name, loader.weights_packages(), list(dict.fromkeys(specs.values())))
    architectures = source.config.get("architectures") or []
    for architecture in architectures:
        if architecture in specs:
            return source, specs[architecture]
    raise ConfigError(
        f"{name}: architecture {', '.join(architectures) or 'not named in config.json'} is not known; "
        f"known are {', '.join(sorted(specs))}"
    )


def assemble(config: EngineConfig, ranks: Ranks | None = None, tap: Tap | None = None) -> Assembly:
    """Everything up to the weights. Call it on the device's launch thread.

    Raises: ConfigError and PluginError, naming the value and the remedy.
    """
    config.check()
    ranks = ranks or Ranks()
    source, spec = find_model(config.model)
    raw = dict(source.config)
    if source.pooling and source.pooling.headless:
        raw["tie_word_embeddings"] = True  # the step draws from something; nobody is given what it draws
    model_config: ModelConfig = spec.read_config(raw, config.max_model_len)
    candidate = loader.choose(loader.discover(), config.device)
    opened = _open(candidate, ranks)
    facts, device, where, notes = opened.facts, opened.device, opened.where, list(opened.replaced)
    plan, kernels = _plan(config, facts, model_config, opened.implementations, tap)
    if plan.batch_invariant and facts.host_memory:
        torch.set_num_threads(1)  # where threads share an operation, the parts depend on its size
    builder = Builder(kernels, ranks.shard, plan.dtype, plan.page_tokens, plan.max_model_len, ranks.group)
    packing = Packing(source, ranks.shard) if plan.weights == "packed" else None
    if packing:
        builder.scheme = packing.scheme
    model = spec.build(model_config, builder)
    if packing:
        notes += packing.notes(builder.params.values(), plan.dtype)
    groups = model_config.kv_groups
    step = StepFunction(model, kernels, groups, plan, ranks.group)
    layouts = tuple(_layout(kernels, g, builder) for g in groups)
    _check_fallback(plan, facts, kernels)
    plan = replace(
        plan,
        bindings=kernels.bindings(),
        notes=tuple(notes),
        certificate=certificate.status(candidate),
        decided_by={**plan.decided_by, "certificate": "core certify"},
    )
    device.seed(config.seed)
    return Assembly(
        source, device, where, facts, plan, kernels, model, step, builder, groups, layouts, model_config.vocab_size
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
    implementations: Sequence[Implementation],
    tap: Tap | None,
) -> tuple[Plan, KernelSet]:
    def kernels_for(**more: Any) -> KernelSet:
        sizes = {g.head_size for g in model.kv_groups}
        need = Need(head_size=max(sizes), batch_invariant=config.batch_invariant, **more)
        return KernelSet(implementations, config.kernels, need, tap)

    # Page sizes follow from what the KV kernels take, and are part of what they must take: ask them first.
    dtype, _ = choose_dtype(config, facts, model.dtype)
    plan = resolve(
        config,
        facts,
        model_dtype=model.dtype,
        model_max_len=model.max_len,
        page_sizes=kernels_for(dtype=dtype, page_tokens=config.block_size).kv_page_sizes(),
        split=model.split,
    )
    limits = {"max_seqs": plan.max_num_seqs, "max_tokens": plan.max_num_batched_tokens}
    return plan, kernels_for(dtype=plan.dtype, page_tokens=plan.page_tokens, **limits)


def _layout(kernels: KernelSet, group: KVGroup, b: Builder) -> Any:
    need = b.need(head_size=group.head_size, page_tokens=b.page_tokens)
    heads = b.split(group.num_kv_heads)
    return kernels.bind("kv_layout", need)(
        num_kv_heads=heads, head_size=group.head_size, page_tokens=b.page_tokens, dtype=b.dtype
    )


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


def open_runner(
    assembly: Assembly, config: EngineConfig, progress: Progress | None = None, *, eager: bool = False
) -> Runner:
    """Load weights, decide the number of KV pages, allocate them. Call it on the device's launch thread.

    eager   steps run as they are, also on a device that compiles
    """
    a = assembly
    notes = list(a.plan.notes)
    if not a.facts.uses_weights:
        zero = torch.zeros((), device=a.where)
        weights: dict[str, Any] = {name: zero.expand(p.shape) for name, p in a.builder.params.items()}
    else:
        load = Loader(
            a.source, a.device, a.where, a.kernels, dtype=a.plan.dtype, shard=a.builder.shard, progress=progress
        )
        with a.device.loading():
            weights = load.load(a.builder.params)
        notes += load.notes(a.builder.params)
    compiles = not eager and not a.facts.shapes.dynamic
    if compiles:
        weights = _kept(a.device, weights)
    plan = replace(a.plan, notes=tuple(notes))
    plan = with_kv_blocks(plan, config, groups=a.groups, page_bytes=a.page_bytes, free_bytes=_free_bytes(a))
    kv = [_planes(a, g, pages, compiles) for g, pages in enumerate(plan.num_kv_blocks)]
    blocks = -(-plan.max_model_len // plan.page_tokens)
    return Runner(
        a.device, a.where, plan, a.step, weights, kv, max_blocks=blocks, vocab_size=a.vocab_size, compiles=compiles
    )


def _kept(device: Device, weights: dict[str, Any]) -> dict[str, Any]:
    """Each weight as the device keeps it, one after another: what several names share is kept once."""
    names: dict[int, list[str]] = {}
    for name, weight in weights.items():
        names.setdefault(id(weight), []).append(name)
    kept = {}
    for same in names.values():
        weight = device.keep(weights[same[0]])
        for name in same:
            kept[name] = weight
            del weights[name]
    return kept


def _free_bytes(a: Assembly) -> int:
    """Memory each rank has for its share: the least of any, and where they share the machine's, a part of that."""
    free = a.device.memory().free_bytes
    size = a.builder.shard.size
    if size == 1:
        return free
    least = torch.tensor([free], dtype=torch.int64, device=a.where)
    torch.distributed.all_reduce(least, torch.distributed.ReduceOp.MIN, group=a.builder.process_group)
    return int(least.item()) // (size if a.facts.host_memory else 1)


def _planes(a: Assembly, group: int, num_pages: int, compiles: bool) -> list[Planes]:
    layout = a.layouts[group]
    dtypes = [TORCH_DTYPES[plane.dtype] for plane in layout.planes]
    keep = a.device.keep if compiles else lambda plane: plane
    return [
        tuple(
            keep(a.device.empty(shape, dtype, a.where))
            for shape, dtype in zip(layout.shapes(num_pages), dtypes, strict=True)
        )
        for _ in range(a.groups[group].num_layers)
    ]
