"""Virtual time: by the cost model, the same under every schedule; what overlaps and what does not."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from devices.kunlun import sim
from devices.kunlun.sim.vendor.bkcl import Bkcl
from tests.devices.kunlun.simulated import SCHEDULES, machine, pinned, stream, zeros

pytestmark = pytest.mark.heavy
_MIB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def _machine() -> Iterator[None]:
    chip = sim.Chip(
        count=2, memory_bytes=64 * _MIB, flops_per_s=1e12, bytes_per_s=1e11, pcie_bytes_per_s=1e9, link_bytes_per_s=1e10
    )
    with machine(chip):
        yield


@pytest.fixture(autouse=True, params=SCHEDULES)
def _schedule(request: pytest.FixtureRequest) -> None:
    torch.accelerator.synchronize()
    sim.set_schedule(request.param)


def compute(seconds: float) -> None:
    sim.launch(lambda: None, [], [], seconds=seconds)


def test_copies_overlap_compute_and_each_other_s_direction() -> None:
    inward, outward, x, y = stream(), stream(), zeros(_MIB), zeros(_MIB)
    start, busy = sim.now_s(), sim.busy_s("h2d")
    with inward:
        x.copy_(pinned(_MIB), non_blocking=True)
    with outward:
        pinned(_MIB).copy_(y, non_blocking=True)
    compute(1e-3)
    torch.accelerator.synchronize()
    assert sim.now_s() - start == pytest.approx(_MIB / 1e9)
    assert sim.busy_s("h2d") - busy == pytest.approx(_MIB / 1e9)


def test_copies_in_one_direction_take_turns() -> None:
    one, other, x, y = stream(), stream(), zeros(_MIB), zeros(_MIB)
    start = sim.now_s()
    for side, target in ((one, x), (other, y)):
        with side:
            target.copy_(pinned(_MIB), non_blocking=True)
    torch.accelerator.synchronize()
    assert sim.now_s() - start == pytest.approx(2 * _MIB / 1e9)


def test_who_waits_starts_later() -> None:
    copies, x = stream(), zeros(_MIB)
    start = sim.now_s()
    with copies:
        x.copy_(pinned(_MIB), non_blocking=True)
    torch.accelerator.current_stream().wait_stream(copies)
    compute(1e-3)
    torch.accelerator.synchronize()
    assert sim.now_s() - start == pytest.approx(_MIB / 1e9 + 1e-3)


def test_cost_by_flops_or_bytes_whichever_takes_longer() -> None:
    start = sim.now_s()
    sim.launch(lambda: None, [], [], flops=3e9, nbytes=1e8)
    torch.accelerator.synchronize()
    assert sim.now_s() - start == pytest.approx(3e-3)
    sim.launch(lambda: None, [], [], flops=3e9, nbytes=1e9)
    torch.accelerator.synchronize()
    assert sim.now_s() - start == pytest.approx(13e-3)


def test_an_operator_takes_the_time_of_its_bytes() -> None:
    x = torch.ones(_MIB, device="kunlun")
    torch.accelerator.synchronize()
    start = sim.now_s()
    torch.cat([x, x])
    torch.accelerator.synchronize()
    assert sim.now_s() - start == pytest.approx(4 * 4 * _MIB / 1e11)


def test_a_replay_takes_the_time_of_its_steps_and_a_capture_none() -> None:
    graph, start = sim.Graph(), sim.now_s()
    with graph.capture():
        compute(1e-3)
        compute(2e-3)
    torch.accelerator.synchronize()
    assert sim.now_s() == start
    graph.replay()
    torch.accelerator.synchronize()
    assert sim.now_s() - start == pytest.approx(3e-3)


def test_polling_takes_as_long_as_the_work() -> None:
    start = sim.now_s()
    compute(1e-3)
    done = torch.accelerator.current_stream().record_event()
    polls = 1
    while not done.query():
        polls += 1
    assert 1e-3 <= sim.now_s() - start <= 1.01e-3
    assert polls == pytest.approx(200, abs=2)


def test_a_ring_takes_the_time_of_its_link() -> None:
    xs = [torch.ones(_MIB, device=f"kunlun:{i}") for i in range(2)]
    torch.accelerator.synchronize(1)
    torch.accelerator.synchronize(0)
    start = sim.now_s()
    sim.all_reduce(xs)
    torch.accelerator.synchronize(1)
    assert sim.now_s() - start == pytest.approx(4 * _MIB / 1e10)
    start = sim.now_s()
    sim.send(xs[0], xs[1])
    torch.accelerator.synchronize(1)
    assert sim.now_s() - start == pytest.approx(4 * _MIB / 1e10)


def test_collectives_of_processes_take_the_time_of_their_links() -> None:
    """Two ranks of a group, here threads. Where one waits for the other, their times add up: they share a clock."""
    store = dist.HashStore()
    xs = [torch.full((_MIB,), float(i + 1), device=f"kunlun:{i}") for i in range(2)]
    whole_s = 4 * _MIB / 1e10

    def rank(i: int) -> list[float]:
        torch.accelerator.set_device_index(i)
        group = Bkcl(store, i, 2, timedelta(seconds=60))
        taken, received = [], [torch.empty_like(xs[i]) for _ in range(2)]
        for call in (
            lambda: group.allreduce([xs[i]], c10d.AllreduceOptions()),
            lambda: group.allgather([received], [xs[i]], c10d.AllgatherOptions()),
            lambda: group.all_to_all_single(received[0], xs[i], [], [], c10d.AllToAllOptions()),
            lambda: group.broadcast([xs[i]], c10d.BroadcastOptions()),
            lambda: group.broadcast([xs[i][:0]], c10d.BroadcastOptions()),
            lambda: (group.recv if i else group.send)([xs[i]], 1 - i, 0),
        ):
            before = sim.busy_s("link", i)
            call()
            taken.append((sim.busy_s("link", i) - before) / whole_s)
        return taken

    start = sim.now_s()
    pcie = sim.busy_s("h2d"), sim.busy_s("d2h")
    with ThreadPoolExecutor(2) as pool:
        for taken in pool.map(rank, range(2)):
            assert taken == pytest.approx([1, 1, 0.5, 1, 0, 1])
    assert sim.now_s() - start >= 4.5 * whole_s
    assert (sim.busy_s("h2d"), sim.busy_s("d2h")) == pcie
    assert xs[1].sum().item() == 3 * _MIB
