"""Collectives over a torch.distributed process group.

Ranks in arguments are ranks within the group. Every backend that has all_reduce, all_gather, all_to_all_single,
broadcast, send and recv will do: scattered sums are made of all_reduce, which gloo has always had.
"""

from typing import Any

import torch
import torch.distributed as dist

from core.errors import DeviceError


def all_reduce(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    """The sum of x over ranks, in place."""
    dist.all_reduce(x, group=group)
    return x


def all_gather(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    """x [A, ...] of every rank, in order of rank: [ranks * A, ...]."""
    parts = x.new_empty((dist.get_world_size(group), *x.shape))
    dist.all_gather(list(parts.unbind(0)), x.contiguous(), group=group)
    return parts.flatten(0, 1)


def reduce_scatter(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    """This rank's part of the sum of x [ranks * A, ...] over ranks: [A, ...].

    Raises: DeviceError for rows that ranks cannot share evenly.
    """
    size = dist.get_world_size(group)
    if x.shape[0] % size:
        raise DeviceError(f"reduce_scatter of {x.shape[0]} rows over {size} ranks: pad them to a multiple of {size}")
    total = all_reduce(x.clone(memory_format=torch.contiguous_format), group=group)
    return total.chunk(size)[dist.get_rank(group)]


def all_to_all_v(x: torch.Tensor, send_counts: list[int], recv_counts: list[int], *, group: Any) -> torch.Tensor:
    """Send the first send_counts[0] rows of x to rank 0, the next to rank 1, and so on; counts are on the host.

    Returns the rows received, in order of rank: [sum of recv_counts, ...].
    """
    received = x.new_empty((sum(recv_counts), *x.shape[1:]))
    dist.all_to_all_single(received, x.contiguous(), recv_counts, send_counts, group=group)
    return received


def broadcast(x: torch.Tensor, *, group: Any, source: int) -> torch.Tensor:
    """x of rank `source`, in place."""
    dist.broadcast(x, dist.get_global_rank(group, source), group=group)
    return x


def send(x: torch.Tensor, *, group: Any, target: int) -> None:
    """Send x to rank `target`, which must `recv`."""
    dist.send(x.contiguous(), dist.get_global_rank(group, target), group=group)


def recv(x: torch.Tensor, *, group: Any, source: int) -> torch.Tensor:
    """Fill x, in place, with what rank `source` sends."""
    dist.recv(x, dist.get_global_rank(group, source), group=group)
    return x
