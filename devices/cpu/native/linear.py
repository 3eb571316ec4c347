"""Products with weights in tile order, by the library's kernels: dense bfloat16, and q4_1 and q8_0 as stored.

How it works. `linear.h` has the order and the arithmetic. Products of a weight [N, K] are summed in float32 along K in
one order whatever the batch and the number of threads, so a token's bits depend on its own row alone. The only
rounding is that of the sum with its bias; scales and minima stay as they are stored. With instructions for
bfloat16, numbers below the least normal float32 count as 0.

Legend: T tokens, N and K rows and columns of a weight, G groups of 64 rows, U units along K.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

from core.kernels.schemes import BLOCK, Q41Weight, Quantised
from devices.cpu.native import calls, library
from devices.cpu.native.pages import Pages

GROUP_ROWS, STRIPS, STRIP_ROWS = 64, 4, 16
HALVES_BYTES = 2 * STRIP_ROWS  # a scale, or a minimum, of each row of a strip
UNIT_BYTES = {"q4_1": 320, "q8_0": 544}
_PIECE = 2**20


class Tiles(NamedTuple):
    """A packed weight.

    tiles     [G, U, 4, ...]: of bfloat16 [16, 2] weights in a unit; of others UNIT_BYTES in each
    address   of its first byte
    multiply  the kernel for its format
    """

    tiles: torch.Tensor
    address: int
    num_rows: int
    num_columns: int
    multiply: Callable[..., int]


class LinearKernels:
    """`pack_weight` and `linear` of one variant."""

    def __init__(self, variant: str) -> None:
        kernels = library.load(variant)
        self._multiply = {"dense": kernels.linear_bf16, "q4_1": kernels.linear_q4_1, "q8_0": kernels.linear_q8_0}
        self._pages = Pages()

    def pack_weight(self, w: torch.Tensor | Quantised, *, scheme: str = "dense") -> Tiles:
        """The weight [N, K] in tile order: bfloat16, or of a scheme in UNIT_BYTES."""
        if isinstance(w, torch.Tensor):
            (num_rows, num_columns), tiles = w.shape, _tile_dense(w, self._pages)
        else:
            num_rows, num_columns = len(w.scale), BLOCK * w.scale.shape[1]
            tiles = _tile_quantised(w, UNIT_BYTES[scheme], self._pages)
        return Tiles(tiles, tiles.data_ptr(), num_rows, num_columns, self._multiply[scheme])


def linear(x: torch.Tensor, handle: Tiles, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [T, K] bfloat16 times the weight [N, K], transposed, plus bias [N]: [T, N].

    Raises: DeviceError when there is no memory for a copy of some tokens.
    """
    num_tokens = x.shape[0]
    if x.stride(1) != 1:
        x = x.contiguous()
    if bias is not None:
        bias = bias.contiguous()
    y = calls.empty((num_tokens, handle.num_rows), x.dtype)
    calls.multiply(
        handle.multiply,
        handle.address,
        handle.num_rows,
        handle.num_columns,
        x.data_ptr(),
        num_tokens,
        x.stride(0),
        None if bias is None else bias.data_ptr(),
        y.data_ptr(),
    )
    return y


def _tile_dense(w: torch.Tensor, pages: Pages) -> torch.Tensor:
    """[N, K] bfloat16 -> [G, U, 64] int32, pairs of K."""
    missing = (0, w.shape[1] % 2, 0, -w.shape[0] % GROUP_ROWS)
    whole = F.pad(w, missing) if any(missing) else w.contiguous()
    tiles = whole.view(torch.int32).view(-1, GROUP_ROWS, whole.shape[1] // 2).transpose(1, 2)
    return pages.empty(tuple(tiles.shape), tiles.dtype).copy_(tiles)


def _tile_quantised(w: Quantised, unit_bytes: int, pages: Pages) -> torch.Tensor:
    """-> [G, U, 4, unit_bytes] uint8, some groups at a time, because single codes may take twice as many bytes."""
    num_rows, num_units = w.scale.shape
    num_groups = -(-num_rows // GROUP_ROWS)
    order = _order_nibbles if isinstance(w, Q41Weight) else _order_bytes
    tiles = pages.empty((num_groups, num_units, STRIPS, unit_bytes), torch.uint8)
    step = max(1, _PIECE // (num_units * BLOCK * GROUP_ROWS))
    for first in range(0, num_groups, step):
        piece = w.rows(first * GROUP_ROWS, (first + step) * GROUP_ROWS)
        missing = (0, 0, 0, -len(piece.scale) % GROUP_ROWS)
        codes, *halves = (F.pad(part, missing) for part in (piece.single_codes(), *piece[1:]))
        some = tiles[first : first + step]
        at = unit_bytes - HALVES_BYTES * len(halves)
        some[..., :at] = order(codes, num_units)
        for one in halves:
            by_strip = one.view(-1, STRIPS, STRIP_ROWS, num_units).permute(0, 3, 1, 2).contiguous()
            some[..., at : at + HALVES_BYTES] = by_strip.view(torch.uint8)
            at += HALVES_BYTES
    return tiles


def _order_nibbles(codes: torch.Tensor, num_units: int) -> torch.Tensor:
    """[rows, K] uint8 -> [G, U, 4, 256]: 4 words of each of 16 rows, whose halves have codes of even and of odd k."""
    # Of k in a unit: word, byte of a half, nibble of a byte, half.
    nibbles = codes.view(-1, STRIPS, STRIP_ROWS, num_units, 4, 2, 2, 2)
    bytes_ = nibbles[..., 0, :] | nibbles[..., 1, :] << 4
    return bytes_.permute(0, 3, 1, 4, 2, 6, 5).reshape(-1, num_units, STRIPS, 256)


def _order_bytes(codes: torch.Tensor, num_units: int) -> torch.Tensor:
    """[rows, K] int8 -> [G, U, 4, 512] uint8: for each k, one of each of 16 rows."""
    by_k = codes.view(torch.uint8).view(-1, STRIPS, STRIP_ROWS, num_units, BLOCK).permute(0, 3, 1, 4, 2)
    return by_k.reshape(-1, num_units, STRIPS, BLOCK * STRIP_ROWS)
