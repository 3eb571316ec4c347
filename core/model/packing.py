"""Which weights stay in the quantised form that a model's files have them in, and why the others do not.

A weight stays packed when every tensor it is joined of is stored in one scheme of `core.kernels.schemes`, the device
has a kernel for that scheme, and the ranks cut it between blocks. Where the device has a kernel for none, references
multiply all of them. Tables that rows are looked up in are always dequantised.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable

from core.errors import ConfigError
from core.kernels.dtypes import TORCH_DTYPES
from core.kernels.schemes import BLOCK, QUANTISED
from core.model.layers import Param, Source
from core.model.source import ModelSource
from core.model.spec import Shard


class Packing:
    """The choices for one rank of a model.

    native   schemes that the device has kernels for; none: all of them are kept
    """

    def __init__(self, source: ModelSource, shard: Shard, native: Collection[str] = ()) -> None:
        self._source = source
        self._shard = shard
        self._native = native or QUANTISED.keys()

    def scheme(self, param: Param) -> str:
        """The scheme that the weight stays in, or "dense"."""
        return "dense" if self._refusal(param) else min(self._schemes(param))

    def _schemes(self, param: Param) -> set[str]:
        stored = [self._source.quantised(source.name) for source in param.sources]
        return {tensor.scheme for tensor in stored if tensor}

    def _refusal(self, param: Param) -> str | None:
        """Why the weight is dequantised; None when it stays packed."""
        dense = {self._source.dtype(s.name) for s in param.sources if self._source.quantised(s.name) is None}
        if dense:
            return f"holds {' and '.join(sorted(dense))}, which has no packed form"
        schemes = self._schemes(param)
        if len(schemes) > 1:
            return f"joined of {' and '.join(sorted(schemes))}"
        if not schemes <= set(self._native):
            return f"the device has no kernel for {' and '.join(schemes)}"
        if not all(self._fits(source) for source in param.sources):
            return f"{self._shard.size} ranks do not share its columns in blocks of {BLOCK}"
        if any(column % BLOCK for source in param.sources for column in source.columns or ()):
            return f"its columns do not begin and end with blocks of {BLOCK}"
        return None

    def _fits(self, source: Source) -> bool:
        return source.axis != 1 or self._source.shape(source.name)[1] % (BLOCK * self._shard.size) == 0

    def notes(self, params: Iterable[Param], dtype: str) -> list[str]:
        """What became of the weights. Raises: ConfigError when none can stay packed."""
        weights = [param for param in params if param.packed]
        packed = [param for param in weights if param.scheme != "dense"]
        reasons = Counter(filter(None, map(self._refusal, weights)))
        others = [f"{count} dequantised: {reason}" for reason, count in sorted(reasons.items())]
        if not packed:
            raise ConfigError(
                f"weights is packed, and no weight of {self._source.name} can stay so ({'; '.join(others)}): give a "
                "GGUF file with tensors of Q4_0, Q4_1 or Q8_0, or --weights dequantised"
            )
        counts = Counter(param.scheme for param in packed)
        kinds = " and ".join(f"{count} in {scheme}" for scheme, count in sorted(counts.items()))
        dense_bytes = sum(math.prod(param.shape) for param in packed) * TORCH_DTYPES[dtype].itemsize
        mib, dense_mib = (size / 2**20 for size in (sum(map(packed_bytes, packed)), dense_bytes))
        kept = (
            f"{len(packed)} of {len(weights)} weights stay packed, {kinds}: {mib:,.0f} MiB instead of {dense_mib:,.0f}"
        )
        return ["; ".join([kept, *others])]


def packed_bytes(param: Param) -> int:
    """Of a weight that stays packed."""
    n, k = param.shape
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in QUANTISED[param.scheme].tensors(n, k))
