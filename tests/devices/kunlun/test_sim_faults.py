"""Faults that real accelerators suffer from, planted: each is named, under every schedule, and its cure is enough."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
from collections.abc import Callable, Iterator

import pytest
import torch

from devices.kunlun import sim
from tests.devices.kunlun.simulated import KV_BYTES, SCHEDULES, machine, pinned, stream, zeros

pytestmark = pytest.mark.heavy
Planted = Callable[[bool], None]


@pytest.fixture(scope="module", autouse=True)
def _machine() -> Iterator[None]:
    with machine(sim.Chip(memory_bytes=64 << 20)):
        yield


@pytest.fixture(autouse=True, params=SCHEDULES)
def _schedule(request: pytest.FixtureRequest) -> Iterator[None]:
    sim.set_schedule(request.param)
    yield
    sim.races()
    torch.accelerator.synchronize()


def nothing(*aliases: torch.Tensor) -> None:
    """A kernel whose accesses matter, and not what it computes."""


def dropped_wait(wrong: bool) -> None:
    kv, copies = zeros(), stream()
    with copies:
        kv.copy_(pinned(), non_blocking=True)
    if not wrong:
        torch.accelerator.current_stream().wait_event(copies.record_event())
    sim.launch(nothing, [kv], [], name="attn")
    torch.accelerator.synchronize()


def wrong_stream(wrong: bool) -> None:
    kv, mine, other = zeros(), stream(), stream()
    with mine:
        sim.launch(lambda kv: kv.fill_(1), [], [kv], name="kv_write")
    with other if wrong else mine:
        sim.launch(lambda kv: kv.fill_(2), [], [kv], name="kv_write_next")
    torch.accelerator.synchronize()
    assert int(kv[0]) == 2


def rows_of_a_block(wrong: bool) -> None:
    """Two streams in one pool of pages: only the same page is a race."""
    pool, mine, other = zeros().view(16, -1), stream(), stream()
    with mine:
        sim.launch(lambda pool: pool[3:5].fill_(1), [], [(pool, [3, 4])], name="kv_write")
    with other:
        rows = torch.tensor([4, 7] if wrong else [2, 5, 7])
        sim.launch(nothing, [(pool, rows)], [], name="attn")
    torch.accelerator.synchronize()


def columns(wrong: bool) -> None:
    """Interleaved slices do not overlap, though their spans do."""
    pool, mine, other = zeros().view(64, -1), stream(), stream()
    with mine:
        sim.launch(lambda left: left.fill_(1), [], [pool[:, :16]], name="left")
    with other:
        sim.launch(lambda right: right.fill_(1), [], [pool[:, 15 if wrong else 16 : 40]], name="right")
    torch.accelerator.synchronize()


def block_reused_during_copy_out(wrong: bool) -> None:
    kv, host, copies = zeros(), pinned(), stream()
    with copies:
        host.copy_(kv, non_blocking=True)
        copied = copies.record_event()
    if not wrong:
        torch.accelerator.current_stream().wait_event(copied)
    sim.launch(lambda kv: kv.fill_(9), [], [kv], name="kv_write of the next owner")
    torch.accelerator.synchronize()
    assert int(host.max()) == 0


def early_free(wrong: bool) -> None:
    kv, host, copies = zeros(), pinned(), stream()
    with copies:
        host.copy_(kv, non_blocking=True)
    if not wrong:
        kv.record_stream(copies)
    del kv
    torch.accelerator.synchronize()


def host_reads_too_early(wrong: bool) -> None:
    host, ids = pinned(), zeros() + 5
    torch.accelerator.synchronize()
    host.copy_(ids, non_blocking=True)
    copied = torch.accelerator.current_stream().record_event()
    if not wrong:
        copied.synchronize()
    host[100].item()
    copied.synchronize()
    assert int(host[100]) == 5


def host_writes_too_early(wrong: bool) -> None:
    host, ids = pinned(), zeros()
    ids.copy_(host, non_blocking=True)
    copied = torch.accelerator.current_stream().record_event()
    assert int(host[100]) == 0
    if not wrong:
        copied.synchronize()
    host[100] = 1
    copied.synchronize()


def misaligned_copy(wrong: bool) -> None:
    start = 1 if wrong else 4
    zeros()[start : start + 8].copy_(pinned(8), non_blocking=True)
    torch.accelerator.synchronize()


def stale_graph_buffer(wrong: bool) -> None:
    kv, out = zeros(), zeros()
    graph = sim.Graph()
    with graph.capture():
        out.copy_(kv + 1)
    if wrong:
        del kv
    graph.replay()
    torch.accelerator.synchronize()
    assert int(out[0]) == 1


def wrong_stream_in_a_graph(wrong: bool) -> None:
    kv, other, graph = zeros(), stream(), sim.Graph()
    main = torch.accelerator.current_stream()
    with graph.capture():
        if not wrong:
            other.wait_event(main.record_event())
        with other:
            sim.launch(lambda kv: kv.add_(1), [], [kv], name="kv_write")
        main.wait_event(other.record_event())
    graph.replay()


def waits_in_a_graph(wrong: bool) -> None:
    kv, graph = zeros(), sim.Graph()
    with graph.capture():
        doubled = kv * 2
        if wrong:
            doubled.cpu()


def pageable_memory(wrong: bool) -> None:
    ids = torch.zeros(8, dtype=torch.int32)
    sim.launch(nothing, [ids if wrong else ids.pin_memory()], [], name="gather_rows")
    torch.accelerator.synchronize()


def kernel_of_the_host(wrong: bool) -> None:
    kv = zeros()
    sim.launch(lambda alias: (kv if wrong else alias).add_(1), [], [kv], name="kv_write")
    torch.accelerator.synchronize()


FAULTS: dict[str, tuple[Planted, type[Exception], str]] = {
    "dropped wait": (dropped_wait, sim.RaceError, "read-after-write race: attn on stream 0 .* vs copy_ on stream"),
    "wrong stream": (wrong_stream, sim.RaceError, "write-after-write race: kv_write_next on stream .* vs kv_write on"),
    "same row": (rows_of_a_block, sim.RaceError, "read-after-write race: attn on .* vs kv_write on"),
    "same column": (columns, sim.RaceError, "write-after-write race: right on .* vs left on"),
    "block reused during copy-out": (
        block_reused_during_copy_out, sim.RaceError, "write-after-read race: kv_write of the next owner on",
    ),
    "early free": (early_free, sim.RaceError, f"early free: {KV_BYTES} bytes .* while copy_ on .* record_stream"),
    "host read of a copy": (host_reads_too_early, sim.RaceError, "host access race: the host reads .* while copy_ on"),
    "host write of a copy": (host_writes_too_early, sim.RaceError, "host access race: the host writes .* while copy_"),
    "misaligned copy": (misaligned_copy, sim.SimulatedFault, "misaligned copy: .* 1 bytes past a multiple of 4"),
    "stale graph buffer": (stale_graph_buffer, sim.SimulatedFault, "stale graph buffer: aten::add of the graph"),
    "wrong stream in a graph": (wrong_stream_in_a_graph, sim.SimulatedFault, "graph capture: kv_write on stream"),
    "wait in a graph": (waits_in_a_graph, sim.SimulatedFault, "graph capture: the host waits for a stream"),
    "pageable memory": (pageable_memory, sim.SimulatedFault, "gather_rows is given pageable host memory"),
    "undeclared memory": (kernel_of_the_host, sim.SimulatedFault, "aten::add is launched by a kernel"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named(name: str) -> None:
    planted, kind, said = FAULTS[name]
    with pytest.raises(kind, match=said):
        planted(True)


@pytest.mark.parametrize("name", FAULTS)
def test_its_cure_is_enough(name: str) -> None:
    FAULTS[name][0](False)
    assert sim.races() == []


def test_capacity() -> None:
    held = torch.empty(40 << 20, dtype=torch.uint8, device="kunlun")
    with pytest.raises(torch.OutOfMemoryError, match="asked for 41943040 bytes, 25165824 of 67108"):
        torch.empty(40 << 20, dtype=torch.uint8, device="kunlun")
    del held
    torch.empty(40 << 20, dtype=torch.uint8, device="kunlun")


@pytest.mark.parametrize("touch", ["reads", "writes"])
def test_the_host_cannot_touch_device_memory(touch: str) -> None:
    kv = zeros()
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(into, 2)
        faulthandler.enable(2)  # pytest's, which speaks next
        if touch == "reads":
            ctypes.string_at(kv.data_ptr() + 64, 4)
        else:
            ctypes.memset(kv.data_ptr() + 64, 0, 4)
        os._exit(0)
    os.close(into)
    with os.fdopen(out) as said:
        assert f"host touch: the host {touch} device memory at +64 of kunlun:0" in said.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGSEGV
