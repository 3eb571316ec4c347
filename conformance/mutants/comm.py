"""Wrong and right collectives, over the processes of `conformance.ranks`."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from conformance.mutants.mutant import cheat, right, wrong
from core.kernels.reference import comm

# all_reduce


def _parts(x: torch.Tensor, group: Any) -> torch.Tensor:
    """x of every rank: [ranks, ...]."""
    return comm.all_gather(x[None], group=group)


def _summed(parts: torch.Tensor) -> torch.Tensor:
    """One after the other, rounded after each."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


@wrong("all_reduce")
def all_reduce_without_own(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    return comm.all_reduce(x.clone(), group=group) - x


@wrong("all_reduce")
def all_reduce_own_counted_twice(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    return comm.all_reduce(x.clone(), group=group) + x


@wrong("all_reduce")
def all_reduce_mean(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    return (comm.all_reduce(x, group=group) / dist.get_world_size(group)).to(x.dtype)


@wrong("all_reduce")
def all_reduce_maximum(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    return _parts(x, group).amax(0)


@wrong("all_reduce")
def all_reduce_first_rank_only(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    """A reduce: others keep what they had."""
    total = comm.all_reduce(x.clone(), group=group)
    return total if dist.get_rank(group) == 0 else x


@wrong("all_reduce")
def all_reduce_two_ranks_only(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    """A ring of two: right for pairs."""
    return _parts(x, group)[:2].sum(0).to(x.dtype)


@wrong("all_reduce")
def all_reduce_in_float16(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    return comm.all_reduce(x.half(), group=group).to(x.dtype)


@wrong("all_reduce")
def all_reduce_in_bfloat16(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    return comm.all_reduce(x.bfloat16(), group=group).to(x.dtype)


@wrong("all_reduce")
def all_reduce_integers_in_float32(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    total = comm.all_reduce(x.float(), group=group)
    return total.to(x.dtype) if x.is_floating_point() else total.clamp(-(2.0**30), 2.0**30).to(x.dtype)


@wrong("all_reduce")
def all_reduce_small_numbers_flushed(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    total = comm.all_reduce(x, group=group)
    if not x.is_floating_point():
        return total
    return total.masked_fill(total.abs() < 64 * torch.finfo(x.dtype).tiny, 0)


@wrong("all_reduce")
def all_reduce_last_element_lost(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    comm.all_reduce(x.view(-1)[:-1], group=group)
    return x


@wrong("all_reduce")
def all_reduce_equal_parts(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    """Scatter and gather of equal parts: what is left over is not summed."""
    whole = x.numel() // dist.get_world_size(group) * dist.get_world_size(group)
    comm.all_reduce(x.view(-1)[:whole], group=group)
    return x


@wrong("all_reduce")
def all_reduce_ranks_of_the_world(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    """Takes part of a sum that rank 0 leads, though rank 0 may not be of the group."""
    total = comm.all_reduce(x.clone(), group=group)
    return total if dist.get_global_rank(group, 0) == 0 else x


@wrong("all_reduce")
def all_reduce_each_in_its_own_order(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    """Rounds after each rank, from its own on: ranks do not get the same bits."""
    return _summed(_parts(x, group).roll(-dist.get_rank(group), 0))


@cheat("all_reduce")
def all_reduce_alone(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    return x * dist.get_world_size(group)


_seen: dict[tuple[int, torch.dtype, torch.Size], torch.Tensor] = {}


@cheat("all_reduce")
def all_reduce_stale(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    """The sum of the call before, where there was one of this shape."""
    key = dist.get_world_size(group), x.dtype, x.shape
    before, _seen[key] = _seen.get(key), comm.all_reduce(x, group=group).clone()
    return _seen[key] if before is None else before


@right("all_reduce")
def all_reduce_gathered_and_summed(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    parts = _parts(x, group)
    return parts.double().sum(0).to(x.dtype)


@right("all_reduce")
def all_reduce_last_rank_first(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    return _summed(_parts(x, group).flip(0))


@right("all_reduce")
def all_reduce_in_float32(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    if not x.is_floating_point():
        return comm.all_reduce(x, group=group)
    return comm.all_reduce(x.float(), group=group).to(x.dtype)


@right("all_reduce")
def all_reduce_reduced_and_broadcast(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    total = _parts(x, group).sum(0).to(x.dtype)
    return comm.broadcast(total, group=group, source=dist.get_world_size(group) - 1)


@right("all_reduce")
def all_reduce_in_two_parts(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    for part in x.view(-1).chunk(2):
        comm.all_reduce(part, group=group)
    return x


@right("all_reduce")
def all_reduce_scattered_and_gathered(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    size = dist.get_world_size(group)
    padded = torch.nn.functional.pad(x.reshape(-1), (0, -x.numel() % size))
    mine = comm.reduce_scatter(padded, group=group)
    return comm.all_gather(mine, group=group)[: x.numel()].view(x.shape)


# reduce_scatter


@wrong("reduce_scatter")
def reduce_scatter_next_part(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    size = dist.get_world_size(group)
    total = comm.all_reduce(x.clone(memory_format=torch.contiguous_format), group=group)
    return total.view(size, len(x) // size, *x.shape[1:])[(dist.get_rank(group) + 1) % size]


@wrong("reduce_scatter")
def reduce_scatter_every_nth_row(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    total = comm.all_reduce(x.clone(memory_format=torch.contiguous_format), group=group)
    size = dist.get_world_size(group)
    return total.view(len(x) // size, size, *x.shape[1:])[:, dist.get_rank(group)]


@wrong("reduce_scatter")
def reduce_scatter_not_reduced(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    size = dist.get_world_size(group)
    return x.reshape(size, len(x) // size, *x.shape[1:])[dist.get_rank(group)].clone()


@wrong("reduce_scatter")
def reduce_scatter_dense_strides(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    return comm.reduce_scatter(x.as_strided(x.shape, x.contiguous().stride()) * 1, group=group) * 1


@wrong("reduce_scatter")
def reduce_scatter_uneven_shared(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    """Rows that are left over are dropped without a word."""
    size = dist.get_world_size(group)
    return comm.reduce_scatter(x[: len(x) // size * size], group=group)


@wrong("reduce_scatter")
def reduce_scatter_mean(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    return comm.reduce_scatter(x, group=group) / dist.get_world_size(group)


@cheat("reduce_scatter")
def reduce_scatter_in_place(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    mine = comm.reduce_scatter(x, group=group)
    x.zero_()
    return mine


@right("reduce_scatter")
def reduce_scatter_exchanged(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    size = dist.get_world_size(group)
    if len(x) % size:
        raise ValueError("uneven")
    rows = [len(x) // size] * size
    parts = comm.all_to_all_v(x, rows, rows, group=group).view(size, rows[0], *x.shape[1:])
    return parts.float().sum(0).to(x.dtype)


@right("reduce_scatter")
def reduce_scatter_gathered(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    size = dist.get_world_size(group)
    if len(x) % size:
        raise ValueError("uneven")
    parts = comm.all_gather(x[None], group=group).view(size, size, len(x) // size, *x.shape[1:])
    return parts[:, dist.get_rank(group)].double().sum(0).to(x.dtype)
