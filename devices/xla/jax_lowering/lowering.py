"""XLA through torchax and jax: device 0 of jax's default platform."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import torch

from core.plugin import Event, Memory
from devices.xla.cache import cache_folder
from devices.xla.jax_lowering.compile import CompiledFunction, Row
from devices.xla.jax_lowering.environment import array, is_array, numbers, tensor, write

CACHE_VARIABLE = "JAX_COMPILATION_CACHE_DIR"


class JaxLowering:
    """As `devices.xla.lowering.Lowering` says."""

    def __init__(self) -> None:
        self._device: Any = None
        self._launched: list[jax.Array] = []

    def open(self) -> None:
        if CACHE_VARIABLE not in os.environ:
            jax.config.update("jax_compilation_cache_dir", str(cache_folder()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        self._device = jax.devices()[0]

    def memory(self) -> Memory | None:
        stats = self._device.memory_stats()
        return Memory(stats["bytes_limit"] - stats["bytes_in_use"], stats["bytes_limit"]) if stats else None

    def synchronize(self) -> None:
        """Functions run in the order of their launch, so the last one is waited for."""
        for result in self._launched:
            if not result.is_deleted():
                result.block_until_ready()

    def keep(self, x: torch.Tensor) -> torch.Tensor:
        kept: torch.Tensor = tensor(jax.device_put(numbers(x), self._device))
        return kept

    def holds(self, x: torch.Tensor) -> bool:
        return is_array(x)

    def arrival(self, dst: torch.Tensor, src: torch.Tensor) -> Event:
        return _Arrival(dst, array(src))

    def compiled(self, function: Callable[..., Any], given: tuple[int, ...]) -> Callable[..., Any]:
        return CompiledFunction(function, given, self._note)

    def row(self, function: Callable[..., Any], structure: Any, moves: bool) -> Row:
        return Row(function, structure, moves)

    def _note(self, results: list[jax.Array]) -> None:
        self._launched = results


class _Arrival(Event):
    """A copy to the host: started at once, and put in its place when it is waited for."""

    def __init__(self, target: torch.Tensor, source: jax.Array) -> None:
        source.copy_to_host_async()
        self._copy: tuple[torch.Tensor, jax.Array] | None = target, source

    def synchronize(self) -> None:
        if self._copy:
            write(*self._copy)
            self._copy = None
