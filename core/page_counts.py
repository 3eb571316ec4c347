"""How many KV pages there are, on the device and on the host: what `core.config` can decide only late.

Pages on the device are counted once weights are loaded, when it shows how much memory is left. `core.kv.sizes` has the
rule by which groups share them.
"""

from __future__ import annotations

from dataclasses import replace

from core.config import EngineConfig
from core.errors import ConfigError
from core.kv.groups import KVGroup
from core.kv.sizes import PageShares
from core.plan import Plan


def with_kv_blocks(
    plan: Plan, config: EngineConfig, *, groups: tuple[KVGroup, ...], page_bytes: tuple[int, ...], free_bytes: int
) -> Plan:
    """Decide how many KV pages there are, now that weights are loaded; `core.kv.sizes` has the rule for groups.

    page_bytes   of one page, per KV group
    free_bytes   of device memory

    A number asked for is that of the first group.
    Raises: ConfigError when there is no memory for it, or one sequence of the length asked for does not fit.
    """
    shares = _shares(plan, groups, page_bytes)
    if config.num_kv_blocks is not None:
        num, by = config.num_kv_blocks, "asked for"
    else:
        share = int(free_bytes * plan.memory_utilization)
        num = shares.within(share)
        by = "every sequence at full length" if num == shares.useful else f"{share / 2**20:,.0f} MiB for KV"
    pages = shares.split(num)
    if config.num_kv_blocks is not None:
        pages = num, *pages[1:]
        _check_memory(pages, page_bytes, shares.within(free_bytes), free_bytes)
    plan = replace(plan, num_kv_blocks=pages, decided_by={**plan.decided_by, "num_kv_blocks": by})
    if all(have >= need for have, need in zip(pages, shares.enough, strict=True)):
        return plan
    holds = max(0, num - 1) * plan.page_tokens
    if config.max_model_len is not None or holds < 2:
        need = max(shares.enough)
        raise ConfigError(
            f"{num} KV pages hold {holds} tokens, and max_model_len is {plan.max_model_len}: lower max_model_len, "
            f"or give memory for {need} pages ({shares.num_bytes(need) / 2**20:,.0f} MiB)"
        )
    decided = {**plan.decided_by, "max_model_len": "what the KV pages hold"}
    return replace(plan, max_model_len=holds, decided_by=decided)


def _check_memory(pages: tuple[int, ...], page_bytes: tuple[int, ...], most: int, free_bytes: int) -> None:
    """Raises: ConfigError when there is too little memory for so many pages of each group."""
    need = sum(num * size for num, size in zip(pages, page_bytes, strict=True))
    if need > free_bytes:
        raise ConfigError(
            f"num_kv_blocks is {pages[0]}: they take {need / 2**20:,.0f} MiB, and {free_bytes / 2**20:,.0f} MiB "
            f"are free; ask for {most} at most"
        )


def _shares(plan: Plan, groups: tuple[KVGroup, ...], page_bytes: tuple[int, ...]) -> PageShares:
    return PageShares(
        groups,
        page_bytes,
        plan.page_tokens,
        max_len=plan.max_model_len,
        max_seqs=plan.max_num_seqs,
        step_tokens=plan.tokens_in_flight,
    )


def with_swap_blocks(
    plan: Plan,
    config: EngineConfig,
    *,
    groups: tuple[KVGroup, ...],
    page_bytes: tuple[int, ...],
    in_place: bool,
    free_bytes: int,
) -> Plan:
    """Decide how many KV pages each rank has on the host. They are shared out among groups as those on the device are.

    in_place     steps leave KV planes where they are, as tensors that `kv_swap` takes
    free_bytes   of host memory

    Raises: ConfigError where nothing can be swapped, and when there is too little memory or asked for too little.
    """
    pages, by = (0,) * len(groups), "default"
    if config.swap_space:
        asked = f"swap_space is {config.swap_space:g} GiB"
        num_bytes, num_ranks = int(config.swap_space * 2**30), plan.tensor_parallel_size
        if not in_place:
            raise ConfigError(
                f"{asked}: device {plan.device} keeps KV pages in a form of its own, which cannot be copied beside "
                "steps; leave it out, and preempted sequences are computed again"
            )
        if num_bytes * num_ranks > free_bytes:
            raise ConfigError(
                f"{asked} for each of {num_ranks} ranks: the host has {free_bytes / 2**30:.2f} GiB free; ask for less"
            )
        shares = _shares(plan, groups, page_bytes)
        num = shares.within(num_bytes)
        if not num:
            raise ConfigError(
                f"{asked}: one KV page of every group takes {shares.num_bytes(1) / 2**30:.2g} GiB; ask for more, "
                "or leave it out"
            )
        full = num == shares.useful
        pages, by = shares.split(num), "every sequence at full length" if full else f"{config.swap_space:g} GiB"
    return replace(plan, num_swap_blocks=pages, decided_by={**plan.decided_by, "num_swap_blocks": by})
