"""Collectives between two real processes over gloo."""

import warnings

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from core.errors import DeviceError
from core.kernels.reference import comm


def on_rank(rank: int, store: str) -> None:
    """Every row, with values that name the rank; an assertion here fails the spawning test."""
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    world = dist.group.WORLD
    other = 1 - rank
    mine = torch.arange(6.0).view(2, 3) + 100 * rank
    theirs = torch.arange(6.0).view(2, 3) + 100 * other
    both = [mine, theirs] if rank == 0 else [theirs, mine]

    x = mine.clone()
    assert comm.all_reduce(x, group=world) is x
    assert x.equal(mine + theirs)

    assert comm.all_gather(mine, group=world).equal(torch.cat(both))
    assert comm.all_gather(mine.t(), group=world).equal(torch.cat([b.t() for b in both]))

    kept = mine.clone()
    assert comm.reduce_scatter(mine, group=world).equal((mine + theirs)[rank : rank + 1])
    assert mine.equal(kept)
    with pytest.raises(DeviceError, match="3 rows over 2 ranks: pad them to a multiple of 2"):
        comm.reduce_scatter(torch.zeros(3, 1), group=world)

    # Rank 0 keeps 2 rows and sends 1; rank 1 sends 3 and keeps none.
    sends = [[2, 1], [3, 0]]
    rows = torch.arange(float(sum(sends[rank])))[:, None] + 10 * rank
    received = comm.all_to_all_v(rows, sends[rank], [s[rank] for s in sends], group=world)
    assert received.flatten().tolist() == ([0, 1, 10, 11, 12] if rank == 0 else [2])

    x = mine.clone()
    assert comm.broadcast(x, group=world, source=1) is x
    assert x.equal(both[1])

    x = torch.empty(3, 2)
    if rank == 0:
        comm.send(mine.t(), group=world, target=1)
        assert comm.recv(x, group=world, source=1) is x
    else:
        comm.recv(x, group=world, source=0)
        comm.send(mine.t(), group=world, target=0)
    assert x.equal(theirs.t())

    # In a group of its own, ranks count from the group's start.
    alone = [dist.new_group([r]) for r in range(2)][rank]
    assert comm.broadcast(mine.clone(), group=alone, source=0).equal(mine)
    assert comm.all_gather(mine, group=alone).equal(mine)
    dist.destroy_process_group()


def test_two_ranks(tmp_path):
    mp.spawn(on_rank, (str(tmp_path / "store"),), nprocs=2)
