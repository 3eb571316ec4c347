"""Where the C library takes large memory from while weights load, and afterwards."""

import ctypes

from devices.cpu.device import CpuDevice
from devices.cpu.heap import LOADING_BYTES, STEP_BYTES


class Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


LIBC = ctypes.CDLL(None)
LIBC.mallinfo2.restype = Mallinfo
LIBC.malloc.restype, LIBC.malloc.argtypes, LIBC.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]


def has_pages_of_its_own(num_bytes: int) -> bool:
    before = LIBC.mallinfo2().hblkhd
    memory = LIBC.malloc(num_bytes)
    mapped = LIBC.mallinfo2().hblkhd - before
    LIBC.free(memory)
    return bool(mapped >= num_bytes)


def test_large_memory_has_pages_of_its_own_only_while_loading() -> None:
    device = CpuDevice()
    for _ in range(2):  # loading again begins anew
        with device.loading():
            assert has_pages_of_its_own(LOADING_BYTES)
        assert not has_pages_of_its_own(LOADING_BYTES)
        assert not has_pages_of_its_own(STEP_BYTES // 2)
        assert has_pages_of_its_own(STEP_BYTES)
