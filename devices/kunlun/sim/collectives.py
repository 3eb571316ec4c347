"""Collectives between the simulated devices of one process.

Each tensor is on a device of its own. The current streams of all of them take part: the work begins when the last one
gets there, and each goes on when it is done. Its time is that of a ring, on the link of the first device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from devices.kunlun.sim.backend import SimulatedFault, started
from devices.kunlun.sim.calls import launch


def all_reduce(tensors: Sequence[torch.Tensor]) -> None:
    """Each tensor becomes the sum of all, added in the order of the list."""
    _check("all_reduce", tensors)

    def add(*aliases: torch.Tensor) -> None:
        total = aliases[0].clone()
        for other in aliases[1 : len(tensors)]:
            total += other
        for target in aliases[len(tensors) :]:
            target.copy_(total)

    share = 2 * (len(tensors) - 1) / len(tensors)
    _together("all_reduce", tensors, tensors, add, share * tensors[0].nbytes)


def all_gather(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """On each device, all of them one after the other along axis 0."""
    _check("all_gather", tensors)
    results = [x.new_empty((len(tensors) * x.shape[0], *x.shape[1:])) for x in tensors]

    def gather(*aliases: torch.Tensor) -> None:
        together = torch.cat(aliases[: len(tensors)])
        for target in aliases[len(tensors) :]:
            target.copy_(together)

    _together("all_gather", tensors, results, gather, (len(tensors) - 1) * tensors[0].nbytes)
    return results


def broadcast(tensors: Sequence[torch.Tensor], source: int) -> None:
    """Each tensor becomes the one at `source` of the list."""
    _check("broadcast", tensors)
    others = [x for i, x in enumerate(tensors) if i != source]

    def spread(value: torch.Tensor, *targets: torch.Tensor) -> None:
        for target in targets:
            target.copy_(value)

    _together("broadcast", [tensors[source]], others, spread, tensors[source].nbytes)


def send(source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy to the tensor of another device, in order with the current streams of both."""
    _check("send", [source, target])
    target.copy_(source, non_blocking=True)


def _check(name: str, tensors: Sequence[torch.Tensor]) -> None:
    devices = [x.device for x in tensors]
    if len(set(devices)) != len(tensors) or any(device.type != "kunlun" for device in devices):
        raise SimulatedFault(f"{name} is given tensors on {devices}: give one tensor on each of several devices")
    if any(x.shape != tensors[0].shape or x.dtype != tensors[0].dtype for x in tensors):
        given = [(tuple(x.shape), x.dtype) for x in tensors]
        raise SimulatedFault(f"{name} is given {given}: give equal shapes and dtypes")


def _together(
    name: str,
    reads: Sequence[torch.Tensor],
    writes: Sequence[torch.Tensor],
    fn: Callable[..., None],
    nbytes: float,
) -> None:
    """One launch that the current streams of all tensors wait for."""
    devices = list(dict.fromkeys(x.device for x in [*reads, *writes]))
    first, *others = [torch.accelerator.current_stream(device) for device in devices]
    for stream in others:
        first.wait_event(stream.record_event())
    with first:
        launch(fn, reads, writes, nbytes / started().link_bytes_per_s, name, engine="link")
    done = first.record_event()
    for stream in others:
        stream.wait_event(done)
