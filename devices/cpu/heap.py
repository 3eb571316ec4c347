"""Where the C library's allocator takes large memory from: its heaps, or pages of their own.

Owns two thresholds of glibc's; does nothing on another C library. Applies to the whole process.

How it works. A step makes and frees the same tensors again and again: from a heap that costs nothing, while fresh
pages for all of them cost an eighth of a prefill. Loading leaves weights behind: in a heap these lie scattered over
what loading freed, 50 to 150 MB around a model of 270 MB that little fits into later. So memory is mapped apart while
weights load, and comes from heaps afterwards. glibc's own rule begins with the one and drifts to the other.
Source: mallopt(3), M_MMAP_THRESHOLD and M_TRIM_THRESHOLD.
"""

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

LOADING_BYTES = 2**17
"""From this size on, memory is mapped apart while weights load: where glibc's own rule begins."""

STEP_BYTES = 5 * 2**20
"""The same for steps. Only a few tensors of a long prompt's step are larger: in heaps they leave up to 90 MB behind for
26 MB in use; apart they make a prefill of 2048 tokens 1% longer."""


@contextmanager
def mapped_apart() -> Iterator[None]:
    """Large memory taken inside has pages of its own, and goes back to the system when it is freed."""
    _set_threshold(LOADING_BYTES)
    try:
        yield
    finally:
        _set_threshold(STEP_BYTES)


def _set_threshold(num_bytes: int) -> None:
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, num_bytes)
    libc.mallopt(_M_TRIM_THRESHOLD, 2 * num_bytes)  # free memory that a heap may keep at its end
