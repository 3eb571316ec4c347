"""Collectives between simulated chips of several processes: a backend of torch.distributed over pinned memory.

What a chip sends is copied to the host and travels by gloo; what arrives is copied to the chip. All of it is done when
a call returns. Sums are formed by gloo, in the dtype that is sent.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


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
        host = _on_host(tensors)
        self._gloo.allreduce(host, options).wait()
        _back(tensors, host)

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> None:  # type: ignore[override]
        host = _on_host(tensors)
        self._gloo.broadcast(host, options).wait()
        _back(tensors, host)

    def allgather(self, received: list[list[torch.Tensor]], sent: list[torch.Tensor], options: Any) -> None:  # type: ignore[override]
        host = [_on_host(received[0])]
        self._gloo.allgather(host, _on_host(sent), options).wait()
        _back(received[0], host[0])

    def all_to_all_single(  # type: ignore[override]
        self, received: torch.Tensor, sent: torch.Tensor, received_sizes: Any, sent_sizes: Any, options: Any
    ) -> None:
        [host] = _on_host([received])
        self._gloo.alltoall_base(host, _on_host([sent])[0], received_sizes, sent_sizes, options).wait()
        _back([received], [host])

    def send(self, tensors: list[torch.Tensor], target: int, tag: int) -> None:  # type: ignore[override]
        self._gloo.send(_on_host(tensors), target, tag).wait()

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> None:  # type: ignore[override]
        host = _on_host(tensors)
        self._gloo.recv(host, source, tag).wait()
        _back(tensors, host)


def _on_host(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.empty(x.shape, dtype=x.dtype).pin_memory().copy_(x) for x in tensors]


def _back(tensors: list[torch.Tensor], host: list[torch.Tensor]) -> None:
    for x, y in zip(tensors, host, strict=True):
        x.copy_(y)
