"""From a model's files to weights on the device.

One tensor at a time: the slice that this rank needs is read, converted, copied to where it belongs, and dropped, so
the host never holds a second copy of the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

from core.errors import ConfigError
from core.kernels.bind import KernelSet
from core.kernels.dtypes import TORCH_DTYPES
from core.model.layers import Param, Source
from core.model.source import ModelSource
from core.model.spec import Shard
from core.plugin.device import Device
from core.plugin.facts import Need

Progress = Callable[[int, int], None]


class Loader:
    """Loads the parameters of one rank.

    progress   called with bytes done and bytes in all, as they will be on the device
    """

    def __init__(
        self,
        source: ModelSource,
        device: Device,
        where: torch.device,
        kernels: KernelSet,
        *,
        dtype: str,
        shard: Shard,
        progress: Progress | None = None,
    ) -> None:
        self._source = source
        self._device = device
        self._where = where
        self._kernels = kernels
        self._dtype_name = dtype
        self._dtype = TORCH_DTYPES[dtype]
        self._shard = shard
        self._progress = progress or (lambda done, total: None)

    def load(self, params: Mapping[str, Param]) -> dict[str, Any]:
        """Every parameter, by name. Raises: ConfigError for a tensor that is missing or has another shape."""
        total = sum(self._bytes(p) for p in params.values())
        shared = Counter(p.sources for p in params.values() if p.sources)
        kept: dict[tuple[Source, ...], torch.Tensor] = {}
        weights, done = {}, 0
        for name, param in params.items():
            raw = kept.get(param.sources) if param.sources else None
            if raw is None:
                raw = self._make(param) if param.make else self._read(param)
            if shared[param.sources] > 1:
                kept[param.sources] = raw
            weights[name] = self._pack(raw) if param.packed else raw
            done += self._bytes(param)
            self._progress(done, total)
        return weights

    def unused(self, params: Mapping[str, Param]) -> list[str]:
        """Tensors of the model that no parameter takes."""
        used = {source.name for p in params.values() for source in p.sources}
        return sorted(set(self._source.names()) - used)

    def _bytes(self, param: Param) -> int:
        count = 1
        for size in param.shape:
            count *= size
        return count * self._dtype.itemsize

    def _pack(self, raw: torch.Tensor) -> Any:
        n, k = raw.shape
        need = Need(dtype=self._dtype_name, n=n, k=k, scheme="dense")
        return self._kernels.bind("pack_weight", need, scheme="dense")(raw)

    def _make(self, param: Param) -> torch.Tensor:
        assert param.make is not None
        made = param.make().to(self._dtype)
        assert made.shape == param.shape, (param.name, made.shape, param.shape)
        target = self._device.empty(param.shape, self._dtype, self._where)
        self._device.h2d(target, made).synchronize()
        return target

    def _read(self, param: Param) -> torch.Tensor:
        target = self._device.empty(param.shape, self._dtype, self._where)
        row = 0
        for source in param.sources:
            part = self._slice(source)
            end = row + part.shape[0]
            if part.shape[1:] != param.shape[1:] or end > param.shape[0]:
                stored = tuple(self._source.shape(source.name))
                raise ConfigError(
                    f"{self._source.name}: tensor {source.name} of shape {stored} does not "
                    f"fit {param.name} {param.shape} as config.json has it: the files do not belong together"
                )
            self._device.h2d(target[row:end], part.to(self._dtype)).synchronize()
            row = end
        if row < param.shape[0]:
            self._pad(param, target[row:])
        return target

    def _pad(self, param: Param, rest: torch.Tensor) -> None:
        """Rows past the end of a table that ranks share unevenly."""
        if len(param.sources) > 1 or param.sources[0].axis != 0 or self._shard.size == 1:
            raise ConfigError(
                f"{self._source.name}: {param.sources[0].name} has {param.shape[0] - len(rest)} rows and {param.name} "
                f"needs {param.shape[0]} as config.json has it: the files do not belong together"
            )
        self._device.h2d(rest, torch.zeros(tuple(rest.shape), dtype=self._dtype)).synchronize()

    def _slice(self, source: Source) -> torch.Tensor:
        if source.axis is None or self._shard.size == 1:
            return self._source.read(source.name)
        length = self._source.shape(source.name)[source.axis]
        share = -(-length // self._shard.size)
        part = slice(min(length, self._shard.rank * share), min(length, (self._shard.rank + 1) * share))
        return self._source.read(source.name, part) if source.axis == 0 else self._source.read(source.name, None, part)
