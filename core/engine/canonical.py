"""KV pages of a device in the canonical form, on the host, and back: by the bound kv_export and kv_import.

Runs on the device's launch thread, in order with steps. Which pages are whose, the caller knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from core.kernels.row import Kernel
from core.model.layers import Planes
from core.plugin.device import Device

_CHUNK_BYTES = 64 << 20  # of canonical entries that are on the device at a time


class Exchanged(NamedTuple):
    """The bound rows of one KV group, and the size of one of its pages of all layers."""

    export: Kernel
    load: Kernel
    page_bytes: int


class Canonical:
    """The canonical form of every KV group."""

    def __init__(self, device: Device, where: torch.device, groups: Sequence[Exchanged]) -> None:
        self._device, self._where, self._groups = device, where, groups

    @torch.inference_mode()
    def read(self, kv: list[list[Planes]], pages: list[list[int]]) -> list[torch.Tensor]:
        """These pages of each group: [layers, 2, N, page, H, D], on the host."""
        return [self._read(g, kv[g], pages[g]) for g in range(len(self._groups))]

    def _read(self, g: int, layers: list[Planes], pages: list[int]) -> torch.Tensor:
        parts = []
        for start, end in self._chunks(g, len(pages)):
            index = self._on_device(torch.tensor(pages[start:end], dtype=torch.int32))
            canonical = self._groups[g].export(layers, index)
            on_host = self._device.host_empty(tuple(canonical.shape), canonical.dtype)
            self._device.d2h(on_host, canonical).synchronize()
            parts.append(on_host)
        return torch.cat(parts, 2)

    @torch.inference_mode()
    def write(self, kv: list[list[Planes]], pages: list[list[int]], entries: list[torch.Tensor]) -> None:
        """Write entries [layers, 2, N, page, H, D] into these pages of each group. Updates `kv` with the results."""
        for g, group in enumerate(entries):
            for start, end in self._chunks(g, len(pages[g])):
                index = self._on_device(torch.tensor(pages[g][start:end], dtype=torch.int32))
                kv[g] = self._groups[g].load(kv[g], index, self._on_device(group[:, :, start:end].contiguous()))

    def _on_device(self, on_host: torch.Tensor) -> torch.Tensor:
        """A copy on the device, which needs `on_host` no more."""
        copy = self._device.empty(tuple(on_host.shape), on_host.dtype, self._where)
        arrived = self._device.h2d(copy, on_host)
        arrived.wait()
        arrived.synchronize()
        return copy

    def _chunks(self, g: int, num_pages: int) -> list[tuple[int, int]]:
        """Parts of so many pages, one at least."""
        size = max(1, _CHUNK_BYTES // self._groups[g].page_bytes)
        return [(start, min(num_pages, start + size)) for start in range(0, max(1, num_pages), size)]
