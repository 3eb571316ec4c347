"""XLA through torch_xla: its default device, which its variable PJRT_DEVICE chooses."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch_xla
from torch_xla.core import xla_model

from core.plugin import Event, Memory
from devices.xla.torch_xla_lowering.compile import CompiledFunction, Row, is_on_device, to_device

CACHE_VARIABLE, KEPT = "XLA_COMPILATION_CACHE_SIZE", "512"
"""How many compiled functions torch_xla keeps. A step has fewer; by itself it keeps 2,048, and on a processor each is
dozens of mappings of memory, of which Linux allows a process 65,530: certification ran out of them."""


class TorchXlaLowering:
    """As `devices.xla.lowering.Lowering` says."""

    def open(self) -> None:
        os.environ.setdefault(CACHE_VARIABLE, KEPT)
        torch_xla.device()

    def memory(self) -> Memory | None:
        if xla_model.xla_device_hw(torch_xla.device()) == "CPU":
            return None
        stats = xla_model.get_memory_info()
        return Memory(stats["bytes_limit"] - stats["bytes_used"], stats["bytes_limit"])

    def synchronize(self) -> None:
        xla_model.wait_device_ops()

    def keep(self, x: torch.Tensor) -> torch.Tensor:
        return to_device([x])[0]

    def holds(self, x: torch.Tensor) -> bool:
        return is_on_device(x)

    def arrival(self, dst: torch.Tensor, src: torch.Tensor) -> Event:
        return _Arrival(dst, src)

    def compiled(self, function: Callable[..., Any], given: tuple[int, ...]) -> Callable[..., Any]:
        return CompiledFunction(function, given)

    def row(self, function: Callable[..., Any], structure: Any, moves: bool) -> Row:
        return Row(function, structure, moves)


class _Arrival(Event):
    """A copy to the host, made when it is waited for: until then, the host goes on."""

    def __init__(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._copy: tuple[torch.Tensor, torch.Tensor] | None = target, source

    def synchronize(self) -> None:
        if self._copy:
            target, source = self._copy
            target.copy_(source.cpu())
            self._copy = None
