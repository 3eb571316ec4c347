"""Makes an assembly run: loads its weights, decides the number of KV pages, allocates them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from core.config import EngineConfig
from core.engine import pools
from core.engine.build import Assembly
from core.engine.canonical import Canonical
from core.engine.runner import Runner
from core.engine.transfers import Transfers
from core.model.load import Loader, Progress
from core.page_counts import with_kv_blocks
from core.plugin.device import Device
from core.speculate.heads import DRAFT_IDS


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
    if a.draft_ids is not None:
        weights[DRAFT_IDS] = a.device.empty(tuple(a.draft_ids.shape), torch.int32, a.where)
        a.device.h2d(weights[DRAFT_IDS], a.draft_ids).synchronize()
    eager = eager or config.enforce_eager
    compiles = not eager and not a.facts.shapes.dynamic
    if compiles:
        weights = _kept(a.device, weights)
    plan = replace(a.plan, notes=tuple(notes), replayed_tokens=0 if eager else a.plan.replayed_tokens)
    plan = with_kv_blocks(plan, config, groups=a.groups, page_bytes=a.page_bytes, free_bytes=_free_bytes(a))
    kv = [
        pools.planes(a.device, a.where, layout, group.num_layers, num, keep=compiles)
        for layout, group, num in zip(a.layouts, a.groups, plan.num_kv_blocks, strict=True)
    ]
    return Runner(
        a.device,
        a.where,
        plan,
        a.step,
        weights,
        kv,
        canonical=Canonical(a.device, a.where, a.exchanged) if a.exchanged else None,
        transfers=Transfers(a.device, a.swapped, plan.num_swap_blocks),
        max_blocks=-(-plan.max_model_len // plan.page_tokens),
        vocab_size=a.vocab_size,
        compiles=compiles,
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
    if a.facts.host_memory:  # swapped pages lie there, too, and take it only when they are used
        swapped = sum(num * size for num, size in zip(a.plan.num_swap_blocks, a.page_bytes, strict=True))
        free = max(0, free - size * swapped)
    if size == 1:
        return free
    least = torch.tensor([free], dtype=torch.int64, device=a.where)
    torch.distributed.all_reduce(least, torch.distributed.ReduceOp.MIN, group=a.builder.process_group)
    return int(least.item()) // (size if a.facts.host_memory else 1)
