"""Collectives between simulated chips of several processes: a backend of torch.distributed over pinned memory.

What a chip sends travels by gloo. All of it is done when a call returns. Sums are formed by gloo, in the dtype that is
sent. Each process has a clock of its own: what crosses the link takes the time of its bytes on the chip's own link, as
in a ring, and that others are not there yet takes none.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from devices.kunlun import sim


def register(name: str, torch_type: str) -> None:
    """Make the backend known to torch.distributed, once."""
    if name not in dist.Backend.backend_list:
        dist.Backend.register_backend(name, Bkcl, devices=[torch_type])


class Bkcl(dist.ProcessGroup):
    """A group of processes with a chip each. torch.distributed calls these methods, and none of them leaves work.

    They have no other overloads and give nothing to wait for, hence what mypy is told.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # as torch has it
        self._gloo: Any = dist.ProcessGroupGloo(store, rank, size, timeout)

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> None:  # type: ignore[override]
        host = _sent(tensors, 2 * self._others / self.size())
        self._gloo.allreduce(host, options).wait()
        _arrived(tensors, host)

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> None:  # type: ignore[override]
        host = _sent(tensors, min(1, self._others))
        self._gloo.broadcast(host, options).wait()
        _arrived(tensors, host)

    def allgather(self, received: list[list[torch.Tensor]], sent: list[torch.Tensor], options: Any) -> None:  # type: ignore[override]
        host = _pinned(received[0])
        self._gloo.allgather([host], _sent(sent, self._others), options).wait()
        _arrived(received[0], host)

    def all_to_all_single(  # type: ignore[override]
        self, received: torch.Tensor, sent: torch.Tensor, received_sizes: Any, sent_sizes: Any, options: Any
    ) -> None:
        [host] = _pinned([received])
        [ours] = _sent([sent], self._others / self.size())
        self._gloo.alltoall_base(host, ours, received_sizes, sent_sizes, options).wait()
        _arrived([received], [host])

    def send(self, tensors: list[torch.Tensor], target: int, tag: int) -> None:  # type: ignore[override]
        self._gloo.send(_sent(tensors, 1), target, tag).wait()

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> None:  # type: ignore[override]
        host = _pinned(tensors)
        self._gloo.recv(host, source, tag).wait()
        _arrived(tensors, host, 1)

    @property
    def _others(self) -> int:
        return int(self.size()) - 1


def _pinned(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.empty(x.shape, dtype=x.dtype).pin_memory() for x in tensors]


def _sent(tensors: list[torch.Tensor], share: float) -> list[torch.Tensor]:
    """What these hold, on the host, after `share` times their bytes have crossed the link."""
    host = _pinned(tensors)
    for x, y in zip(tensors, host, strict=True):
        _cross(x, y, x, share)
    return host


def _arrived(tensors: list[torch.Tensor], host: list[torch.Tensor], share: float = 0) -> None:
    """Put it back from there."""
    for x, y in zip(tensors, host, strict=True):
        _cross(y, x, x, share)


def _cross(source: torch.Tensor, target: torch.Tensor, on_chip: torch.Tensor, share: float) -> None:
    """Copy, and wait for it. The host's memory stands for the link."""
    if not on_chip.numel():
        return  # memory of no bytes is neither here nor there
    seconds = share * on_chip.nbytes / sim.started().link_bytes_per_s
    sim.launch(lambda x, y: y.copy_(x), [source], [target], seconds, "bkcl", engine="link")
    torch.accelerator.current_stream(on_chip.device.index).synchronize()
