"""The compiled kernels: which variant this process uses, and why none where there is none.

Owns the choice of a variant and the library's types. Imports no torch: probing a device asks what is there. The variant
is the best that the processor can run; `CORE_CPU_NATIVE` names another one, or "off". Torch's operators are kept where
they are better: on processors with AMX where the compiler knew none, and on those that can run none but the portable
variant. Asking for AMX lets the process use its registers from then on, as torch does, too.
"""

import ctypes
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from core.errors import ConfigError, DeviceError
from devices.cpu import machine
from devices.cpu.native.build import LIBRARY, REASON, sources_hash
from devices.cpu.native.jobs import INT, POINTER, Call, Kernels

HERE = Path(__file__).parent
VARIABLE = "CORE_CPU_NATIVE"
PORTABLE = "generic"
_NOT_COMPILED = "compiled without AMX"  # as the library says it


@dataclass(frozen=True)
class Native:
    """A variant to use, and why it is no better one; or the reason why there is none."""

    variant: str | None
    reason: str

    def describe(self) -> str:
        """For people: part of what the device says it is."""
        if self.variant is None:
            return f"no native kernels: {self.reason}"
        return f"native kernels: {self.variant}" + (f" ({self.reason})" if self.reason else "")


def find_native() -> Native:
    """What this process is to use. Raises: ConfigError when the variable names what cannot be had."""
    asked = os.environ.get(VARIABLE, "")
    if asked == "off":
        return Native(None, f"{VARIABLE} is off")
    missing = _why_missing()
    have = () if missing else variants()
    if asked and asked not in have:
        choices = ", ".join((*have, "off"))
        raise ConfigError(f"{VARIABLE} is {asked}: choose among {choices}" + (f" ({missing})" if missing else ""))
    if asked:
        return Native(asked, "")
    reason = missing or _why_not(have[0])
    if reason:
        return Native(None, reason)
    amx = "amx_bf16" in machine.instruction_sets()
    return Native(have[0], _why_no_tiles() if amx else "")


def _why_not(best: str) -> str:
    """Why torch's operators are better here than the best variant; empty when they are not."""
    if "amx_bf16" in machine.instruction_sets() and _why_no_tiles() == _NOT_COMPILED:
        return f"torch uses AMX and they were {_NOT_COMPILED}; {VARIABLE}={best} takes them"
    return f"this processor has no AVX2; {VARIABLE}={best} takes portable ones" if best == PORTABLE else ""


def variants() -> tuple[str, ...]:
    """Of the library's variants those that this processor can run, best first."""
    names: list[str] = []
    while (name := _library().core_cpu_variant(len(names))) is not None:
        names.append(name.decode())
    return tuple(names)


def _why_no_tiles() -> str:
    """Why no variant uses AMX, where the processor has it; empty when one does."""
    reason: bytes | None = _library().core_cpu_why_no_tiles()
    return reason.decode() if reason else ""


def load(variant: str) -> Kernels:
    """The kernels of one of `variants()`, on the threads of torch, which must have been imported.

    Raises: DeviceError where torch's threads are of a library that cannot be shared.
    """
    process = ctypes.CDLL(None)
    try:
        threads = [ctypes.cast(getattr(process, name), POINTER) for name in ("GOMP_parallel", "omp_get_max_threads")]
    except AttributeError as error:
        raise DeviceError(
            f"native kernels of the cpu device cannot use torch's threads ({error}): set {VARIABLE}=off to do without"
        ) from error
    _library().core_cpu_use_threads(*threads)
    kernels: Kernels = _library().core_cpu_kernels(variants().index(variant)).contents
    return kernels


def replay(calls: "ctypes.Array[Call]") -> int:
    """Make these calls, in order: how many were made, fewer than all where memory was short."""
    made: int = _library().core_cpu_replay(calls, len(calls))
    return made


@cache
def _why_missing() -> str:
    """Why there is no library to use; empty when there is one."""
    if not (HERE / LIBRARY).exists():
        why = HERE / REASON
        return "not built: " + (why.read_text().strip() if why.exists() else "pip compiles them with the package")
    try:
        sources = _library().core_cpu_sources()
    except OSError as error:
        return f"cannot be loaded: {error}"
    if sources.decode() != sources_hash():
        return "not built from these sources: install the package again"
    return ""


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(HERE / LIBRARY))
    library.core_cpu_sources.restype = ctypes.c_char_p
    library.core_cpu_variant.restype = ctypes.c_char_p
    library.core_cpu_why_no_tiles.restype = ctypes.c_char_p
    library.core_cpu_kernels.restype = ctypes.POINTER(Kernels)
    library.core_cpu_replay.argtypes = (POINTER, INT)
    library.core_cpu_replay.restype = INT
    library.core_cpu_use_threads.argtypes = (POINTER, POINTER)
    library.core_cpu_use_threads.restype = None
    return library
