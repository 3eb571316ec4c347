"""Where the C library takes large memory from while weights load, and afterwards."""

import subprocess
import sys

# In a process of its own: an allocation that fits into what others have freed tells nothing.
PROGRAM = """
import ctypes
from devices.cpu.device import CpuDevice
from devices.cpu.heap import LOADING_BYTES, STEP_BYTES

class Mallinfo(ctypes.Structure):
    _fields_ = [(f"field{i}", ctypes.c_size_t) for i in range(10)]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Mallinfo
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def mapped(num_bytes):
    "Whether memory of that size has pages of its own: field 4 counts them."
    before = libc.mallinfo2().field4
    memory = libc.malloc(num_bytes)
    grown = libc.mallinfo2().field4 - before
    libc.free(memory)
    return grown >= num_bytes

libc.free(libc.malloc(STEP_BYTES // 4))  # glibc's own rule now takes less than that from a heap
with CpuDevice().loading():
    print(mapped(8 * LOADING_BYTES), mapped(STEP_BYTES))
print(mapped(8 * LOADING_BYTES), mapped(STEP_BYTES // 2), mapped(STEP_BYTES))
"""


def test_large_memory_has_pages_of_its_own_only_while_loading() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True True", "False False True"]
