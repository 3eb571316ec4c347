"""Products with weights of 4 bits (scheme q4_1) that stay packed, by torch's own kernel for such weights.

How it works. The kernel takes each row of x anew through all codes, so it wins where there are few: reading 5 bits a
weight instead of 16. From MANY_ROWS on, pieces of the weight are unpacked and multiplied as dense ones. Between about
16 rows and MANY_ROWS neither is as fast as a dense weight.

Refuses processors where torch keeps the codes in another order than the one known here. Scales and zeros are rounded to
bfloat16: with the weights of SmolLM2 a product's error is 1.6 times that with dense weights in bfloat16 (median), and
the model's distributions are as far from float32's as with those. In other dtypes torch's kernel is slower than a
dense product.

Legend: T tokens, N and K rows and columns of a weight, B rows whose codes torch keeps together.
"""

from typing import NamedTuple

import torch

from core.kernels.schemes import BLOCK, Q41Weight

MANY_ROWS = 128
_PIECE = 2**20
_ZERO_CODE = 8  # the code that torch's kernel adds nothing but the zero for


class Packed(NamedTuple):
    """w = scale * (code - 8) + zero, for a weight [N, K], and rows of zeros up to a multiple of B.

    codes         [N.., K / 2] uint8, in torch's order: [N.. / B, K, B / 2], where byte j has row j of the B in its
                  lower 4 bits, and row j + B / 2 in its upper ones
    scale_zero    [K / 32, N.., 2] bfloat16
    num_rows      N
    block_rows    B
    """

    codes: torch.Tensor
    scale_zero: torch.Tensor
    num_rows: int
    block_rows: int


def find_block_rows() -> int | None:
    """B on this processor; None where torch has no such kernel, or keeps codes in another order."""
    if not hasattr(torch.ops.aten, "_weight_int4pack_mm_for_cpu"):
        return None
    codes = torch.randint(16, (192, 64), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    packed = _pack_codes(codes)
    return next((b for b in (64, 32) if _unpack_codes(packed, b).transpose(1, 2).reshape(192, 64).equal(codes)), None)


def _pack_codes(codes: torch.Tensor) -> torch.Tensor:
    """[N, K] -> [N, K / 2] uint8."""
    # The last argument has no effect on a CPU.
    packed: torch.Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int(), 2)
    return packed


def _unpack_codes(codes: torch.Tensor, block_rows: int) -> torch.Tensor:
    """[N, K / 2] uint8 -> [N / B, K, B] float32."""
    half = block_rows // 2
    blocks = codes.view(-1, codes.shape[1] * 2, half)
    single = torch.empty((*blocks.shape[:2], block_rows))
    single[..., :half] = blocks & 15
    single[..., half:] = blocks >> 4
    return single


def pack_weight(w: Q41Weight, *, scheme: str, block_rows: int) -> Packed:
    """A q4_1 weight as `linear` takes it."""
    num_rows, num_bytes = w.codes.shape
    padded = -(-num_rows // block_rows) * block_rows
    codes = w.codes.new_zeros((padded, num_bytes))
    scale_zero = torch.zeros((num_bytes * 2 // BLOCK, padded, 2), dtype=torch.bfloat16)
    step = max(1, _PIECE // (2 * num_bytes) // block_rows) * block_rows
    for first in range(0, num_rows, step):
        piece = w.rows(first, first + step)
        last = first + len(piece.codes)
        single = piece.single_codes()
        end = min(first + step, padded)
        codes[first:end] = _pack_codes(torch.nn.functional.pad(single, (0, 0, 0, end - last)))
        scale, minimum = piece.scale.float(), piece.minimum.float()
        scale_zero[:, first:last] = torch.stack([scale, minimum + _ZERO_CODE * scale], -1).transpose(0, 1)
    return Packed(codes, scale_zero, num_rows, block_rows)


def linear(x: torch.Tensor, handle: Packed, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [T, K] bfloat16 times the weight [N, K], transposed, plus bias [N]: [T, N]."""
    y = _multiply_unpacked(x, handle) if x.shape[0] >= MANY_ROWS else _multiply_packed(x, handle)
    if handle.num_rows < y.shape[1]:
        y = y[:, : handle.num_rows].contiguous()
    return y if bias is None else y.add_(bias)


def _multiply_packed(x: torch.Tensor, w: Packed) -> torch.Tensor:
    """[T, N..]"""
    y: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x.contiguous(), w.codes, BLOCK, w.scale_zero)
    return y


def _multiply_unpacked(x: torch.Tensor, w: Packed) -> torch.Tensor:
    """[T, N..]"""
    y = x.new_empty((x.shape[0], len(w.codes)))
    step = max(1, _PIECE // x.shape[1] // w.block_rows) * w.block_rows
    for first in range(0, y.shape[1], step):
        piece = slice(first, first + step)
        y[:, piece] = x @ _unpack(w.codes[piece], w.scale_zero[:, piece], w.block_rows)
    return y


def _unpack(codes: torch.Tensor, scale_zero: torch.Tensor, block_rows: int) -> torch.Tensor:
    """Rows of a weight, transposed: [K, rows] bfloat16. Rounded once more, from scales that were rounded."""
    wide = _unpack_codes(codes, block_rows)
    num_blocks, k, _ = wide.shape
    by_scale = wide.view(num_blocks, k // BLOCK, BLOCK, block_rows)
    pairs = scale_zero.view(k // BLOCK, num_blocks, 1, block_rows, 2)
    scale, zero = pairs.permute(4, 1, 0, 2, 3).float().contiguous()
    torch.addcmul(torch.add(zero, scale, alpha=-_ZERO_CODE), by_scale, scale, out=by_scale)
    out = torch.empty((k, num_blocks, block_rows), dtype=scale_zero.dtype)
    return out.copy_(wide.transpose(0, 1)).view(k, -1)
