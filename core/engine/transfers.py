"""KV pages on one rank's host, and the copies between them and the device.

Transfers run aside of the steps, start in the order of the plans and are reported in that order, when a later step's
output is read; nothing waits for them but a plan that has nothing else to do. Owns the planes on the host; which pages
are whose, the scheduler knows (`core.engine.swap`). `start` and `drain` belong to the device's launch thread, `poll`
and `wait_oldest` to whoever reads the outputs: in the first rank another thread, so only these take anything out there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import torch

from core.engine.step import StepPlan, Transfer
from core.kernels.dtypes import TORCH_DTYPES
from core.kernels.reference.kv import KVLayout
from core.kernels.row import Kernel
from core.model.layers import Planes
from core.plugin.device import Device, Event

_CHUNK_BYTES = 64 << 20  # of one layer that a copy may hold in between


class Swapped(NamedTuple):
    """What swapping needs of a KV group: its layout and its bound `kv_swap`."""

    layout: KVLayout
    kernel: Kernel
    num_layers: int


class _UnderWay(NamedTuple):
    number: int
    end: Event


class Transfers:
    """`num_pages` on the host, per KV group. Without `groups`, nothing is ever transferred."""

    def __init__(self, device: Device, groups: Sequence[Swapped], num_pages: Sequence[int]) -> None:
        self._device, self._groups = device, groups
        self._host = [
            [_host_planes(device, group.layout, num) for _ in range(group.num_layers)]
            for group, num in zip(groups, num_pages, strict=False)
        ]
        self._under_way: deque[_UnderWay] = deque()
        self.started = self._done = 0  # numbers of the last one

    @property
    def under_way(self) -> bool:
        """Whether one was started whose end nobody has seen."""
        return bool(self._under_way)

    def start(self, plan: StepPlan, kv: list[list[Planes]]) -> None:
        """Start what a plan transfers, once what it relies on has ended. Updates `kv` with what copies return."""
        self._settle(plan.transferred)
        for transfer in plan.transfers:
            with self._device.aside():
                for g in range(len(self._groups)):
                    self._copy(transfer, g, kv[g])
                self._under_way.append(_UnderWay(transfer.number, self._device.record()))
            self.started = transfer.number

    def _copy(self, transfer: Transfer, g: int, kv: list[Planes]) -> None:
        """The pages of one group, layer by layer. Their numbers stay on the host, which tells a copy engine of them."""
        group, host = self._groups[g], self._host[g]
        size = max(1, _CHUNK_BYTES // group.layout.bytes_per_page)
        for start in range(0, len(transfer.pages[g]), size):
            pages = torch.tensor(transfer.pages[g][start : start + size], dtype=torch.int32)
            places = torch.tensor(transfer.host_pages[g][start : start + size], dtype=torch.int32)
            for layer in range(*transfer.layers or (0, len(host))):
                if transfer.to_host:
                    host[layer] = group.kernel(host[layer], kv[layer], places, pages)
                else:
                    kv[layer] = group.kernel(kv[layer], host[layer], pages, places)

    def _settle(self, number: int) -> None:
        """Wait for transfers up to `number`. In the first rank they are over; others may not have seen their ends."""
        while self._under_way and self._under_way[0].number <= number:
            self.wait_oldest()

    def wait_oldest(self) -> None:
        """Wait for the oldest transfer under way, if there is one."""
        if self._under_way:
            self._under_way[0].end.synchronize()
            self._done = self._under_way.popleft().number

    def poll(self) -> int:
        """Number of the last transfer that is complete with all before it. Does not wait."""
        while self._under_way and self._under_way[0].end.done():
            self._done = self._under_way.popleft().number
        return self._done

    def drain(self) -> None:
        """Wait for all that was started, even of a transfer that failed: then its pages may have other uses."""
        if self._groups:
            self._under_way.clear()
            self._device.synchronize()


def _host_planes(device: Device, layout: KVLayout, num_pages: int) -> Planes:
    shapes = zip(layout.shapes(num_pages), layout.planes, strict=True)
    return tuple(device.host_empty(shape, TORCH_DTYPES[plane.dtype]) for shape, plane in shapes)
