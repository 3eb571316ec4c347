"""Memory for packed weights, in huge pages where the system has them.

How it works. A product of few tokens reads a weight from end to end: with pages of 4 KiB the processor stops at the end
of each to look up the next one, and asks for nothing ahead across it. Weights lie one after another in large regions,
since most are not a whole number of huge pages. A region goes back to the system with its last weight; what was never
touched takes nothing. Source: madvise(2), MADV_HUGEPAGE.
"""

import contextlib
import math
import mmap

import torch

REGION_BYTES = 2**28
_ALIGNED = 64


class Pages:
    """Gives memory from one region after another. For one thread."""

    def __init__(self) -> None:
        self._region: mmap.mmap | None = None
        self._taken = 0

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of zeros, or of undefined content. Raises: OSError when the system has no such memory."""
        num_bytes = math.prod(shape) * dtype.itemsize
        if num_bytes == 0:
            return torch.empty(shape, dtype=dtype)
        if self._region is None or self._taken + num_bytes > len(self._region):
            self._region = mmap.mmap(-1, max(REGION_BYTES, num_bytes), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._taken = 0
            with contextlib.suppress(OSError):  # a system without huge pages
                self._region.madvise(mmap.MADV_HUGEPAGE)
        flat = torch.frombuffer(self._region, dtype=dtype, count=math.prod(shape), offset=self._taken)
        self._taken += -(-num_bytes // _ALIGNED) * _ALIGNED
        return flat.view(shape)
