"""Steps without Python between kernels: what a step calls is recorded once for a shape, and then made in one call.

How it works. Kernels read lengths, ids and pages from the step's inputs, which keep their addresses, so calls alone
make a step. While a step is recorded it runs as always, but for the memory of its results: that comes from an `Arena`,
stays where it is, and is used again where torch would free it, which a replay repeats in the same order. What torch
computes between kernels would be missing from a replay, so every call of torch is watched, and one that neither looks
at a tensor nor takes a view of it ends the recording. (Calls from Python are watched: to watch operators, torch loads
what takes a second and 70 MB.)
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.overrides import TorchFunctionMode

from core.errors import DeviceError
from core.plugin import CannotCompile
from devices.cpu.native import library
from devices.cpu.native.calls import of_thread
from devices.cpu.native.jobs import LINEAR, Call

_ALIGNED = 64  # bytes: what torch's own memory is aligned to
Bytes = npt.NDArray[np.uint8]
_LOOKS = frozenset(
    {"__get__", "__len__", "data_ptr", "dim", "element_size", "is_contiguous", "numel", "promote_types"}
    | {"size", "stride", "untyped_storage", "__getitem__", "contiguous", "expand", "flatten", "reshape", "split"}
    | {"squeeze", "t", "transpose", "unbind", "unflatten", "unsqueeze", "view"}
)
"""Names of calls that give no tensor, or one that is a view of what they are given, which is looked at."""


class Arena:
    """Memory of recordings of which one runs at a time: results of one are gone when another one runs."""

    def __init__(self) -> None:
        self._free: list[Bytes] = []
        self._taken: dict[int, weakref.finalize[..., Any]] = {}

    @property
    def num_bytes(self) -> int:
        """Of all memory, while nothing is recorded."""
        return sum(len(block) for block in self._free)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of undefined content, whose memory is free again when torch drops it."""
        size = max(_ALIGNED, math.prod(shape) * dtype.itemsize)
        block = self._take(-(-size // _ALIGNED) * _ALIGNED)
        lease = block[:size]
        self._taken[id(block)] = released = weakref.finalize(lease, self._give_back, block)
        released.atexit = False
        return torch.from_numpy(lease)[: math.prod(shape) * dtype.itemsize].view(dtype).view(shape)

    def release(self) -> None:
        """Let the next recording have what the one before still holds."""
        for released in list(self._taken.values()):
            released()

    def _take(self, size: int) -> Bytes:
        fitting = [block for block in self._free if size <= len(block) <= 2 * size]
        if not fitting:
            block = np.empty(size + _ALIGNED, np.uint8)
            return block[-block.ctypes.data % _ALIGNED :][:size]
        best = min(fitting, key=len)
        self._free = [block for block in self._free if block is not best]
        return best

    def _give_back(self, block: Bytes) -> None:
        del self._taken[id(block)]
        self._free.append(block)


class _Recording(TorchFunctionMode):
    """What a thread calls, until it ends. See `devices.cpu.native.calls.Recorder`."""

    def __init__(self, arena: Arena) -> None:
        super().__init__()
        self._arena, self._is_own = arena, False
        self.calls: list[Call] = []
        self.jobs: list[ctypes.Structure] = []

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        self._is_own = True
        try:
            return self._arena.empty(shape, dtype)
        finally:
            self._is_own = False

    def add(self, kernel: Any, job: ctypes.Structure) -> None:
        address = ctypes.cast(kernel, ctypes.c_void_p)
        multiplies = isinstance(kernel, LINEAR)
        self.calls.append(Call(address if multiplies else None, None if multiplies else address, ctypes.addressof(job)))
        self.jobs.append(job)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__
        if not self._is_own and name not in _LOOKS:
            raise CannotCompile(f"torch computes {name} between kernels")
        result = func(*args, **(kwargs or {}))
        results = result if isinstance(result, tuple | list) else (result,)
        tensors = [x for x in results if isinstance(x, torch.Tensor)]
        if tensors and not self._is_own:
            have = {x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor)}
            if any(x.untyped_storage().data_ptr() not in have for x in tensors):  # such as of `contiguous`
                raise CannotCompile(f"torch copies for {name} between kernels")
        return result


class Recorded:
    """`function`, whose calls are recorded at the first call. See `core.plugin.Device.compile`.

    A replay gives the tensors of the first call, written anew: they are read before another one of `arena` runs.
    """

    def __init__(self, function: Callable[..., Any], arena: Arena) -> None:
        self._function, self._arena = function, arena
        self._calls: ctypes.Array[Call] | None = None

    def __call__(self, *args: Any) -> Any:
        """Raises: CannotCompile at the first call, when there is more to it than kernels; DeviceError."""
        if self._calls is None:
            return self._record(args)
        places = [x.data_ptr() for x in args if isinstance(x, torch.Tensor)]
        if places != self._places:
            raise DeviceError(f"a recorded step reads tensors at {self._places}, and was given others, at {places}")
        made = library.replay(self._calls)
        if made < len(self._calls):
            raise DeviceError("no memory for a recorded step: stop other programs, or lower max_num_batched_tokens")
        return self._result

    def _record(self, args: tuple[Any, ...]) -> Any:
        recording = _Recording(self._arena)
        of_thread.recorder = recording
        try:
            with recording:
                self._result = self._function(*args)
        finally:
            of_thread.recorder = None
            self._arena.release()
        self._jobs = recording.jobs
        self._places = [x.data_ptr() for x in args if isinstance(x, torch.Tensor)]
        self._calls = (Call * len(recording.calls))(*recording.calls)
        return self._result
