"""From a model's files to weights on the device.

A few rows at a time: what this rank needs is read, converted, copied to where it belongs, and dropped, so the host
never holds a second copy of the model, nor of its largest tensor.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from core.errors import ConfigError
from core.kernels.bind import KernelSet
from core.kernels.dtypes import TORCH_DTYPES
from core.kernels.schemes import QUANTISED, Quantised
from core.model.layers import Param, Source
from core.model.source import ModelSource
from core.model.spec import Shard
from core.plugin.device import Device
from core.plugin.facts import Need

Progress = Callable[[int, int], None]
Weight = torch.Tensor | Quantised

PIECE_BYTES = 4 * 2**20


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
        total = sum(_bytes(p, self._dtype) for p in params.values())
        shared = Counter(_content(p) for p in params.values() if p.sources)
        kept: dict[object, Weight] = {}
        weights, done = {}, 0
        for name, param in params.items():
            content = _content(param)
            raw = kept.get(content)
            if raw is None:
                raw = self._make(param) if param.make else self._read(param)
            if shared[content] > 1:
                kept[content] = raw
            weights[name] = self._pack(raw, param) if param.packed else raw
            done += _bytes(param, self._dtype)
            self._progress(done, total)
        return weights

    def notes(self, params: Mapping[str, Param]) -> list[str]:
        """What the user should know of the model's files: tensors nobody takes, and weights that grow by loading."""
        used = {source.name for p in params.values() for source in p.sources}
        dense = {source.name for p in params.values() for source in p.sources if p.scheme == "dense"}
        unused = sorted(set(self._source.names()) - used)
        notes = [f"{len(unused)} tensors of the model are not used, such as {unused[0]}"] if unused else []
        quantised = Counter(self._source.dtype(name) for name in dense if self._source.dtype(name) not in TORCH_DTYPES)
        if quantised:
            whole = weight_bytes((p for p in params.values() if p.sources), self._dtype_name)
            added = (whole - self._source.size_bytes // self._shard.size) / 2**20
            kinds = " and ".join(f"{name} ({count} tensors)" for name, count in sorted(quantised.items()))
            notes.append(f"weights in {kinds} are dequantised to {self._dtype_name}, which takes {added:,.0f} MiB more")
        return notes

    def _pack(self, raw: Weight, param: Param) -> Any:
        n, k = param.shape
        need = Need(dtype=self._dtype_name, n=n, k=k, scheme=param.scheme)
        return self._kernels.bind("pack_weight", need, scheme=param.scheme)(raw)

    def _make(self, param: Param) -> torch.Tensor:
        assert param.make is not None
        made = param.make().to(self._dtype)
        assert made.shape == param.shape, (param.name, made.shape, param.shape)
        target = self._device.empty(param.shape, self._dtype, self._where)
        self._device.h2d(target, made).synchronize()
        return target

    def _read(self, param: Param) -> Weight:
        targets = [self._device.empty(shape, dtype, self._where) for shape, dtype in _tensors(param, self._dtype)]
        row = 0
        for source in param.sources:
            rows, columns = self._part(source)
            self._check_fit(param, source, row + sum(r.stop - r.start for r in rows), columns)
            for piece in _pieces(rows, PIECE_BYTES // (4 * math.prod(param.shape[1:]))):
                end = row + piece.stop - piece.start
                parts = self._read_piece(param, source, piece, columns)
                for target, part in zip(targets, parts, strict=True):
                    self._device.h2d(target[row:end], part).synchronize()
                row = end
        if row < param.shape[0]:
            self._check_pad(param, row)
            for target in targets:
                rest = target[row:]
                self._device.h2d(rest, torch.zeros(tuple(rest.shape), dtype=rest.dtype)).synchronize()
        return targets[0] if param.scheme == "dense" else QUANTISED[param.scheme]._make(targets)

    def _read_piece(self, param: Param, source: Source, rows: slice, columns: slice | None) -> tuple[torch.Tensor, ...]:
        """Rows of a tensor, as they stand in the parameter's tensors."""
        if param.scheme != "dense":
            quantised = self._source.quantised(source.name)
            assert quantised is not None, source.name
            return quantised.read(rows, columns)
        part = self._source.read(source.name, rows, columns)
        if param.add:
            part = part.float() + param.add
        return (part.to(self._dtype),)

    def _check_fit(self, param: Param, source: Source, end: int, columns: slice | None) -> None:
        """Whether the part of a tensor that reaches to row `end` of a parameter has the shape it must have."""
        stored = tuple(self._source.shape(source.name))
        width = (min(columns.stop, stored[1]) - columns.start,) if columns else stored[1:]
        joined = not source.sections or sum(source.sections) == stored[0]
        if width != param.shape[1:] or end > param.shape[0] or not joined:
            raise ConfigError(
                f"{self._source.name}: tensor {source.name} of shape {stored} does not "
                f"fit {param.name} {param.shape} as config.json has it: the files do not belong together"
            )

    def _check_pad(self, param: Param, row: int) -> None:
        """Whether a parameter may end at `row` and be zero from there: as the last part of a table shared unevenly."""
        source = param.sources[0]
        share = -(-self._source.shape(source.name)[0] // self._shard.size)
        if len(param.sources) > 1 or source.axis != 0 or share != param.shape[0]:
            raise ConfigError(
                f"{self._source.name}: {source.name} has {row} rows and {param.name} "
                f"needs {param.shape[0]} as config.json has it: the files do not belong together"
            )

    def _part(self, source: Source) -> tuple[list[slice], slice | None]:
        """The rows of a tensor that this rank needs, in order, and the columns (None: all)."""
        shape = self._source.shape(source.name)
        if source.columns:
            return [slice(0, shape[0])], slice(*source.columns)
        if source.axis is None or self._shard.size == 1:
            return [slice(0, shape[0])], None
        if source.axis == 1:
            return [slice(0, shape[0])], self._share(0, shape[1])
        starts = itertools.accumulate(source.sections, initial=0)
        sections = zip(starts, source.sections, strict=False) if source.sections else [(0, shape[0])]
        return [self._share(start, size) for start, size in sections], None

    def _share(self, start: int, size: int) -> slice:
        """This rank's part of `size` rows or columns from `start` on."""
        share = -(-size // self._shard.size)
        first, last = (min(size, rank * share) for rank in (self._shard.rank, self._shard.rank + 1))
        return slice(start + first, start + last)


def weight_bytes(params: Iterable[Param], dtype: str) -> int:
    """Of what parameters are read into, on this rank; those that can share memory count once."""
    return sum({_content(param): _bytes(param, TORCH_DTYPES[dtype]) for param in params}.values())


def _bytes(param: Param, dtype: torch.dtype) -> int:
    return sum(math.prod(shape) * kind.itemsize for shape, kind in _tensors(param, dtype))


def _tensors(param: Param, dtype: torch.dtype) -> Sequence[tuple[tuple[int, ...], torch.dtype]]:
    """Shape and dtype of what a parameter is read into: one tensor, or those of a quantised weight."""
    if param.scheme == "dense":
        return [(param.shape, dtype)]
    n, k = param.shape
    return QUANTISED[param.scheme].tensors(n, k)


def _content(param: Param) -> object:
    """What is the same for parameters that can share memory."""
    return param.sources, param.add, param.scheme


def _pieces(rows: list[slice], most: int) -> Iterator[slice]:
    """The same rows, at most `most` (but one) at a time."""
    for part in rows:
        for start in range(part.start, part.stop, max(1, most)):
            yield slice(start, min(part.stop, start + max(1, most)))
