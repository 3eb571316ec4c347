"""Calls of the library's kernels, and memory for what they give: all goes through here, so that it can be recorded.

What is recorded on a thread is what that thread calls: engines of one process have a thread each.
"""

import ctypes
import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch

from core.errors import DeviceError
from devices.cpu.native.jobs import Product


class Recorder(Protocol):
    """What is told of each call, and gives the memory for its results."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor: ...
    def add(self, kernel: Any, job: ctypes.Structure) -> None: ...


class _OfThread(threading.local):
    recorder: Recorder | None = None


of_thread = _OfThread()


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Memory for a result."""
    recorder = of_thread.recorder
    return recorder.empty(shape, dtype) if recorder else torch.empty(shape, dtype=dtype)


def call(kernel: Callable[..., Any], job: ctypes.Structure) -> None:
    """Call a kernel that takes a job."""
    kernel(ctypes.byref(job))
    if of_thread.recorder:
        of_thread.recorder.add(kernel, job)


def multiply(kernel: Callable[..., int], *product: int | None) -> None:
    """Call a kernel that multiplies; its arguments are those of `Product`.

    Raises: DeviceError when there is no memory for a copy of some tokens.
    """
    if kernel(*product):
        raise DeviceError(f"no memory for a step of {product[4]} tokens: lower max_num_batched_tokens")
    if of_thread.recorder:
        of_thread.recorder.add(kernel, Product(*product))
