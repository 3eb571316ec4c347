"""What the examinations of rows that only move data share: their dtypes, and results that must be the same bits."""

from __future__ import annotations

import numpy as np
import torch

from conformance.draw import Draw, from_bits
from conformance.judge import Expected
from conformance.oracle.move import Bits
from core.kernels.dtypes import TORCH_DTYPES
from core.plugin.facts import DTYPES, Need

MOVED = (*DTYPES, "int32")
"""Dtypes of the activations, and that of ids, positions and slots."""


def torch_dtype(name: str) -> torch.dtype:
    return torch.int32 if name == "int32" else TORCH_DTYPES[name]


def need_of(dtype: str) -> Need:
    """Of a move: int32 is moved by every device, so it is not among the dtypes one may lack."""
    return Need(dtype=dtype) if dtype in DTYPES else Need()


def numbers(draw: Draw, dtype: str, *shape: int, any_bits: bool = False) -> torch.Tensor:
    """Normal numbers; or any bits, which is what integers are in either case."""
    if any_bits or dtype not in DTYPES:
        return draw.bits(torch_dtype(dtype), *shape)
    return draw.tensor(dtype, *shape)


def int32(values: object) -> torch.Tensor:
    return torch.from_numpy(np.asarray(values, np.int64).astype(np.int32))


def ints(x: torch.Tensor) -> list[int]:
    found: list[int] = x.flatten().tolist()
    return found


def same(bits: Bits, dtype: torch.dtype) -> Expected:
    """These very bits."""
    return Expected(bits=from_bits(bits, dtype))
