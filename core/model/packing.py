"""Which weights stay in the quantised form that a model's files have them in, and why the others do not.

A weight stays packed when every tensor it is joined of is stored in one scheme of `core.kernels.schemes`, and the
ranks cut it between blocks. Tables that rows are looked up in are always dequantised.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from core.errors import ConfigError
from core.kernels.dtypes import TORCH_DTYPES
from core.kernels.schemes import BLOCK
from core.model.layers import Param, Source
from core.model.source import ModelSource
from core.model.spec import Shard

Q41_BLOCK_BYTES = BLOCK // 2 + 2 * 2


class Packing:
    """The choices for one rank of a model."""

    def __init__(self, source: ModelSource, shard: Shard) -> None:
        self._source = source
        self._shard = shard

    def scheme(self, param: Param) -> str:
        """The scheme that the weight stays in, or "dense"."""
        return "dense" if self._refusal(param) else "q4_1"

    def _refusal(self, param: Param) -> str | None:
        """Why the weight is dequantised; None when it stays packed."""
        dense = {self._source.dtype(s.name) for s in param.sources if self._source.quantised(s.name) is None}
        if dense:
            return f"holds {' and '.join(sorted(dense))}, which has no packed form"
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
                "GGUF file with Q4_1 tensors, or --weights dequantised"
            )
        count = sum(math.prod(param.shape) for param in packed)
        mib, dense_mib = (size / 2**20 for size in (packed_bytes(count), count * TORCH_DTYPES[dtype].itemsize))
        kept = (
            f"{len(packed)} of {len(weights)} weights stay packed in q4_1: {mib:,.0f} MiB instead of {dense_mib:,.0f}"
        )
        return ["; ".join([kept, *others])]


def packed_bytes(count: int) -> int:
    """Of `count` weights in q4_1."""
    return count // BLOCK * Q41_BLOCK_BYTES
