"""Graphs: what is recorded, what a capture leaves alone, whose memory it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from devices.kunlun import sim
from tests.devices.kunlun.simulated import SCHEDULES, machine, pinned, stream, zeros

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module", autouse=True)
def _machine() -> Iterator[None]:
    with machine(sim.Chip(memory_bytes=64 << 20)):
        yield


@pytest.fixture(autouse=True, params=SCHEDULES)
def _schedule(request: pytest.FixtureRequest) -> Iterator[None]:
    sim.set_schedule(request.param)
    yield
    torch.accelerator.synchronize()
    assert sim.races() == []


def test_launches_copies_and_operators_are_replayed() -> None:
    x, cache = torch.ones(4, 4, device="kunlun"), torch.zeros(3, 4, 4, device="kunlun")
    host, back = torch.ones(4, 4).pin_memory(), torch.zeros(4, 4).pin_memory()
    graph = sim.Graph()
    with graph.capture():
        x.copy_(host, non_blocking=True)
        y = torch.cat([x @ x, x])[:4] + 1
        sim.launch(lambda y, cache: cache[1].copy_(y), [y], [(cache, [1])], name="kv_write")
        torch.mul(y, 2, out=(doubled := torch.empty(4, 4, device="kunlun")))
        top, _ = torch.topk(doubled, 1)
        back.copy_(doubled, non_blocking=True)
    for value in (1.0, 3.0):
        host.fill_(value)
        graph.replay()
        torch.accelerator.synchronize()
        assert float(y[0, 0]) == 4 * value * value + 1
        assert cache[:, 0, 0].tolist() == [0, 4 * value * value + 1, 0]
        assert float(top[2, 0]) == float(back[3, 3]) == 2 * (4 * value * value + 1)


def test_a_capture_leaves_memory_alone_and_its_results_poisoned() -> None:
    counter, host = zeros(8), pinned(8)
    torch.accelerator.synchronize()
    graph = sim.Graph()
    with graph.capture():
        counter.add_(1)
        sim.launch(lambda x: x.add_(1), [], [counter])
        result = counter + 1
        host.copy_(result, non_blocking=True)
    assert counter.tolist() == [0] * 8
    assert host.tolist() == [0] * 8
    assert set(result.tolist()) == {0xA5}
    graph.replay()
    graph.replay()
    assert (counter.tolist(), result.tolist()) == ([4] * 8, [5] * 8)


def test_streams_that_are_waited_for_take_part() -> None:
    x, side = zeros(8), stream()
    main = torch.accelerator.current_stream()
    graph = sim.Graph()
    with graph.capture():
        side.wait_event(main.record_event())
        with side:
            sim.launch(lambda x: x.add_(1), [], [x])
        main.wait_event(side.record_event())
        sim.launch(lambda x: x.mul_(3), [], [x])
    other = stream()
    other.wait_stream(main)
    with other:
        graph.replay()
        graph.replay()
    other.synchronize()
    assert x.tolist() == [12] * 8


def test_a_race_within_is_found_when_it_is_captured() -> None:
    x, side = zeros(8), stream()
    main = torch.accelerator.current_stream()

    def capture() -> None:
        with sim.Graph().capture():
            side.wait_event(main.record_event())
            with side:
                sim.launch(lambda x: x.add_(1), [], [x], name="left")
            sim.launch(lambda x: x.mul_(3), [], [x], name="right")

    with pytest.raises(sim.RaceError, match=r"write-after-write race: right on .* vs left on"):
        capture()
    torch.accelerator.synchronize()


def test_a_replay_races_with_what_it_does_not_wait_for() -> None:
    x, side, graph = zeros(8), stream(), sim.Graph()
    with graph.capture():
        sim.launch(lambda x: x.add_(1), [], [x], name="step")
    with side:
        sim.launch(lambda x: x, [x], [], name="copy out")
    with pytest.raises(sim.RaceError, match=r"write-after-read race: step on .* vs copy out on"):
        graph.replay()


def test_memory_is_reused_within_and_given_back_in_the_end() -> None:
    torch.accelerator.synchronize()
    before = torch.accelerator.get_memory_info()[0]
    x = torch.ones(1 << 20, device="kunlun")
    graph = sim.Graph()
    with graph.capture():
        y = x
        for _ in range(20):  # 80 MiB in all, of 64
            y = y + 1
    graph.replay()
    assert float(y[5]) == 21
    del y
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(56 << 20, dtype=torch.uint8, device="kunlun")
    del graph, x
    torch.accelerator.synchronize()
    assert torch.accelerator.get_memory_info()[0] == before
    assert torch.empty(56 << 20, dtype=torch.uint8, device="kunlun").numel() == 56 << 20


def test_a_capture_that_failed_is_no_graph() -> None:
    x, graph = zeros(8), sim.Graph()

    def capture() -> None:
        with graph.capture():
            x.add_(1)
            raise ValueError("out of luck")

    with pytest.raises(ValueError, match="out of luck"):
        capture()
    with pytest.raises(sim.SimulatedFault, match="this graph holds nothing to replay"):
        graph.replay()
    with graph.capture():
        x.add_(1)
    graph.replay()
    assert x.tolist() == [1] * 8


def test_a_copy_that_the_host_waits_for_is_refused() -> None:
    x = zeros(8)
    with pytest.raises(sim.SimulatedFault, match="graph capture: the host waits"), sim.Graph().capture():
        x.copy_(torch.ones(8, dtype=torch.uint8))
    assert x.tolist() == [0] * 8
