"""Inputs from seeds: the same everywhere, on every platform and with every version of numpy.

The words are Philox's; what is made of them uses integers and exactly rounded sums only, because logarithms and
cosines differ between C libraries.
"""

from __future__ import annotations

import hashlib
import hmac
import math

import numpy as np
import numpy.typing as npt
import torch

from core.kernels.dtypes import TORCH_DTYPES

Floats = npt.NDArray[np.float64]
_PER_NORMAL = 12


def case_seed(root: bytes, name: str, part: int = 0) -> bytes:
    """The seed of a case under the root of a run; `part` numbers its draws."""
    return hmac.new(root, f"{name}#{part}".encode(), hashlib.sha256).digest()


class Draw:
    """A stream of numbers.

    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", doi 10.1145/2063384.2063405.
    """

    def __init__(self, seed: bytes) -> None:
        self._bits = np.random.Philox(key=int.from_bytes(hashlib.sha256(seed).digest()[:16], "little"))

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        return np.asarray(self._bits.random_raw(count), np.uint64)

    def uniform(self, *shape: int) -> Floats:
        """In [0, 1), multiples of 2^-53."""
        words = self.words(math.prod(shape)) >> np.uint64(11)
        return (words.astype(np.float64) * 2.0**-53).reshape(shape)

    def normal(self, *shape: int) -> Floats:
        """Mean 0, variance 1, between -6 and 6: sums of twelve uniform numbers, exact in integers."""
        count = math.prod(shape)
        halves = self.words(count * _PER_NORMAL // 2).view(np.uint32).reshape(count, _PER_NORMAL)
        total = halves.astype(np.int64).sum(-1)
        return np.asarray(total.astype(np.float64) * 2.0**-32 - _PER_NORMAL / 2).reshape(shape)

    def integers(self, low: int, high: int, *shape: int) -> npt.NDArray[np.int64]:
        """In [low, high)."""
        span = np.uint64(high - low)
        return ((self.words(math.prod(shape)) >> np.uint64(16)) % span).astype(np.int64).reshape(shape) + low

    def integer(self, low: int, high: int) -> int:
        """One in [low, high)."""
        return int(self.integers(low, high, 1)[0])

    def permutation(self, count: int) -> npt.NDArray[np.int64]:
        return np.argsort(self.words(count), kind="stable")

    def bits(self, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        """Any bits at all: among them every kind of NaN, infinities, subnormal numbers and both zeros."""
        num_bytes = math.prod(shape) * dtype.itemsize
        raw = self.words(-(-num_bytes // 8)).view(np.uint8)[:num_bytes]
        return from_bits(raw.view(f"u{dtype.itemsize}").reshape(shape), dtype)

    def tensor(self, dtype: str, *shape: int, scale: float = 1.0) -> torch.Tensor:
        """Normal numbers times `scale`, rounded to `dtype`."""
        return stored(self.normal(*shape) * scale, dtype)


def stored(values: Floats, dtype: str) -> torch.Tensor:
    """Values rounded to a dtype of the activations."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(TORCH_DTYPES[dtype])


def from_bits(bits: npt.NDArray[np.unsignedinteger], dtype: torch.dtype) -> torch.Tensor:
    """The tensor with these bits: the inverse of `judge.raw`."""
    signed = np.ascontiguousarray(bits).view(f"i{dtype.itemsize}")
    return torch.from_numpy(signed.reshape(-1)).view(dtype).reshape(bits.shape)


def exact(x: torch.Tensor) -> Floats:
    """A tensor's values in float64."""
    return np.asarray(x.detach().double().cpu().numpy(), np.float64)
