"""Wrong and right all_gather, all_to_all_v, broadcast, send and recv, over the processes of `conformance.ranks`."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from conformance.mutants.mutant import cheat, right, wrong
from core.kernels.reference import comm

# all_gather


@wrong("all_gather")
def all_gather_last_rank_first(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    return comm.all_gather(x[None], group=group).flip(0).flatten(0, 1)


@wrong("all_gather")
def all_gather_own_first(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    return comm.all_gather(x[None], group=group).roll(-dist.get_rank(group), 0).flatten(0, 1)


@wrong("all_gather")
def all_gather_own_only(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    return torch.cat([x] * dist.get_world_size(group))


@wrong("all_gather")
def all_gather_interleaved(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    return comm.all_gather(x[None], group=group).transpose(0, 1).flatten(0, 1)


@wrong("all_gather")
def all_gather_along_columns(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    return torch.cat(list(comm.all_gather(x[None], group=group)), -1)


@wrong("all_gather")
def all_gather_last_row_lost(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    y = comm.all_gather(x, group=group)
    y[-1:] = 0
    return y


@wrong("all_gather")
def all_gather_dense_strides(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    """Views, and NaN too: not bit by bit."""
    return comm.all_gather(x.as_strided(x.shape, x.contiguous().stride()), group=group) + 0


@wrong("all_gather")
def all_gather_summed(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    """Zeros are summed around one's own part: -0 and NaN do not survive."""
    size = dist.get_world_size(group)
    parts = x.new_zeros((size, *x.shape))
    parts[dist.get_rank(group)] = x
    return (comm.all_reduce(parts, group=group) + 0).flatten(0, 1)


@right("all_gather")
def all_gather_by_broadcasts(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    sizes = range(dist.get_world_size(group))
    return torch.cat([comm.broadcast(x.contiguous().clone(), group=group, source=rank) for rank in sizes])


@right("all_gather")
def all_gather_as_bytes(x: torch.Tensor, *, group: Any) -> torch.Tensor:
    if not x.numel():
        return comm.all_gather(x, group=group)
    flat = comm.all_gather(x.reshape(-1).view(torch.uint8), group=group)
    return flat.view(x.dtype).view(-1, *x.shape[1:])


# all_to_all_v


@wrong("all_to_all_v")
def all_to_all_v_last_rank_first(
    x: torch.Tensor, send_counts: list[int], recv_counts: list[int], *, group: Any
) -> torch.Tensor:
    y = comm.all_to_all_v(x, send_counts, recv_counts, group=group)
    return torch.cat(torch.split(y, recv_counts)[::-1])


@wrong("all_to_all_v")
def all_to_all_v_own_lost(
    x: torch.Tensor, send_counts: list[int], recv_counts: list[int], *, group: Any
) -> torch.Tensor:
    y = comm.all_to_all_v(x, send_counts, recv_counts, group=group)
    torch.split(y, recv_counts)[dist.get_rank(group)].zero_()
    return y


@wrong("all_to_all_v")
def all_to_all_v_equal_counts(
    x: torch.Tensor, send_counts: list[int], recv_counts: list[int], *, group: Any
) -> torch.Tensor:
    """Rows are taken from equal parts of x."""
    size = len(send_counts)
    starts = [len(x) // size * i for i in range(size)]
    parts = [x[s : s + n] if s + n <= len(x) else x[len(x) - n :] for s, n in zip(starts, send_counts, strict=True)]
    return comm.all_to_all_v(torch.cat(parts), send_counts, recv_counts, group=group)


@wrong("all_to_all_v")
def all_to_all_v_last_row_lost(
    x: torch.Tensor, send_counts: list[int], recv_counts: list[int], *, group: Any
) -> torch.Tensor:
    y = comm.all_to_all_v(x, send_counts, recv_counts, group=group)
    y[-1:] = 0
    return y


@wrong("all_to_all_v")
def all_to_all_v_through_float16(
    x: torch.Tensor, send_counts: list[int], recv_counts: list[int], *, group: Any
) -> torch.Tensor:
    return comm.all_to_all_v(x.half(), send_counts, recv_counts, group=group).to(x.dtype)


@cheat("all_to_all_v")
def all_to_all_v_source_cleared(
    x: torch.Tensor, send_counts: list[int], recv_counts: list[int], *, group: Any
) -> torch.Tensor:
    y = comm.all_to_all_v(x, send_counts, recv_counts, group=group)
    x.zero_()
    return y


@right("all_to_all_v")
def all_to_all_v_gathered(
    x: torch.Tensor, send_counts: list[int], recv_counts: list[int], *, group: Any
) -> torch.Tensor:
    """Everybody gets everything, and takes what is his."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    counts = comm.all_gather(torch.tensor([send_counts]), group=group).tolist()
    most = max(1, *(sum(row) for row in counts))
    padded = torch.cat((x, x.new_zeros((most - len(x), *x.shape[1:]))))
    parts = comm.all_gather(padded[None], group=group)
    starts = [sum(counts[i][:rank]) for i in range(size)]
    return torch.cat([parts[i, starts[i] : starts[i] + counts[i][rank]] for i in range(size)])


# broadcast


@wrong("broadcast")
def broadcast_from_rank_0(x: torch.Tensor, *, group: Any, source: int) -> torch.Tensor:
    return comm.broadcast(x, group=group, source=0)


@wrong("broadcast")
def broadcast_not_to_the_last(x: torch.Tensor, *, group: Any, source: int) -> torch.Tensor:
    held, last = x.clone(), dist.get_world_size(group) - 1
    comm.broadcast(x, group=group, source=source)
    return held if dist.get_rank(group) == last else x


@wrong("broadcast")
def broadcast_rank_of_the_world(x: torch.Tensor, *, group: Any, source: int) -> torch.Tensor:
    """Takes the source for a rank of the world: of a group that starts later, the first one answers."""
    members = dist.get_process_group_ranks(group)
    return comm.broadcast(x, group=group, source=members.index(source) if source in members else 0)


@wrong("broadcast")
def broadcast_last_element_lost(x: torch.Tensor, *, group: Any, source: int) -> torch.Tensor:
    comm.broadcast(x.view(-1)[:-1], group=group, source=source)
    return x


@wrong("broadcast")
def broadcast_summed(x: torch.Tensor, *, group: Any, source: int) -> torch.Tensor:
    """Others add zeros: -0 and NaN do not survive."""
    mine = x if dist.get_rank(group) == source else torch.zeros_like(x)
    return comm.all_reduce(mine, group=group) + 0


@right("broadcast")
def broadcast_gathered(x: torch.Tensor, *, group: Any, source: int) -> torch.Tensor:
    return comm.all_gather(x[None], group=group)[source]


@right("broadcast")
def broadcast_in_two_parts(x: torch.Tensor, *, group: Any, source: int) -> torch.Tensor:
    for part in x.view(-1).chunk(2):
        comm.broadcast(part, group=group, source=source)
    return x


# send


@wrong("send")
def send_last_element_lost(x: torch.Tensor, *, group: Any, target: int) -> None:
    sent = x.contiguous().clone()
    sent.view(-1)[-1:] = 0
    comm.send(sent, group=group, target=target)


@wrong("send")
def send_dense_strides(x: torch.Tensor, *, group: Any, target: int) -> None:
    comm.send(x.as_strided(x.shape, torch.empty(x.shape).stride()), group=group, target=target)


@wrong("send")
def send_by_value(x: torch.Tensor, *, group: Any, target: int) -> None:
    """Not bit by bit: NaN and -0 become others."""
    comm.send(x.bfloat16().to(x.dtype) if not x.is_floating_point() else x + 0, group=group, target=target)


_held: dict[tuple[int, torch.Size, torch.dtype], torch.Tensor] = {}


@wrong("send")
def send_stale(x: torch.Tensor, *, group: Any, target: int) -> None:
    """What was sent there before, where that had the same shape."""
    key = target, x.shape, x.dtype
    before = _held.get(key, x)
    _held[key] = x.clone()
    comm.send(before, group=group, target=target)


@cheat("send")
def send_given_away(x: torch.Tensor, *, group: Any, target: int) -> None:
    comm.send(x, group=group, target=target)
    x.zero_()


@right("send")
def send_copied(x: torch.Tensor, *, group: Any, target: int) -> None:
    comm.send(x.clone(memory_format=torch.contiguous_format), group=group, target=target)


@right("send")
def send_started(x: torch.Tensor, *, group: Any, target: int) -> None:
    work = dist.isend(x.contiguous(), dist.get_global_rank(group, target), group=group)
    assert work is not None
    work.wait()


# recv


@wrong("recv")
def recv_last_element_kept(x: torch.Tensor, *, group: Any, source: int) -> torch.Tensor:
    held = x.clone()
    comm.recv(x, group=group, source=source)
    x.view(-1)[-1:] = held.view(-1)[-1:]
    return x


@wrong("recv")
def recv_not_waited_for(x: torch.Tensor, *, group: Any, source: int) -> torch.Tensor:
    """What was in x before, as a caller sees it that does not wait."""
    held = x.clone()
    comm.recv(x, group=group, source=source)
    return held


@wrong("recv")
def recv_added(x: torch.Tensor, *, group: Any, source: int) -> torch.Tensor:
    held = x.clone()
    return comm.recv(x, group=group, source=source) + held


@wrong("recv")
def recv_beside(x: torch.Tensor, *, group: Any, source: int) -> torch.Tensor:
    comm.recv(x, group=group, source=source)
    return x.view(-1).roll(1).view(x.shape)


@right("recv")
def recv_elsewhere(x: torch.Tensor, *, group: Any, source: int) -> torch.Tensor:
    return comm.recv(torch.zeros_like(x), group=group, source=source)


@right("recv")
def recv_started(x: torch.Tensor, *, group: Any, source: int) -> torch.Tensor:
    work = dist.irecv(x, dist.get_global_rank(group, source), group=group)
    assert work is not None
    work.wait()
    return x
