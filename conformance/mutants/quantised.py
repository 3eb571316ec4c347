"""Wrong and right kernels of linear with weights of 4 bits, of pack_weight, and of quant_act."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from conformance.mutants.cheats import add_cheats
from conformance.mutants.gemm import DENSE
from conformance.mutants.mutant import right, wrong
from conformance.mutants.numbers import toward_zero
from core.kernels.reference import dense
from core.kernels.row import Kernel
from core.kernels.schemes import BLOCK, Q41Weight
from core.plugin.facts import Support

Tensor = torch.Tensor
Q4_1 = Support(schemes=frozenset({"q4_1"}))


def _weight(codes: Tensor, scale: Tensor, minimum: Tensor) -> Tensor:
    """[N, K] float32 of single codes."""
    blocks = codes.view(len(codes), -1, BLOCK).float()
    return (blocks * scale.float()[..., None] + minimum.float()[..., None]).view(codes.shape)


def _with(weight: Callable[[Q41Weight], Tensor], name: str) -> Kernel:
    """A kernel that dequantises otherwise, then multiplies as it should."""

    def kernel(x: Tensor, handle: Q41Weight, bias: Tensor | None = None) -> Tensor:
        y = F.linear(x.float(), weight(handle), None if bias is None else bias.float())
        return y.to(x.dtype)

    kernel.__name__ = name
    return kernel


def _swapped(w: Q41Weight) -> Tensor:
    return (w.codes >> 4) | (w.codes << 4)


def _by_turns(w: Q41Weight) -> Tensor:
    """Takes the two codes of a byte for neighbours."""
    return torch.stack((w.codes & 15, w.codes >> 4), -1).flatten(1)


_WEIGHTS: dict[str, Callable[[Q41Weight], Tensor]] = {
    "minimum_ignored": lambda w: _weight(w.single_codes(), w.scale, torch.zeros_like(w.minimum)),
    "minimum_subtracted": lambda w: _weight(w.single_codes(), w.scale, -w.minimum),
    "minimum_times_scale": lambda w: _weight(w.single_codes(), w.scale, w.minimum * w.scale),
    "scale_of_the_block_before": lambda w: _weight(w.single_codes(), w.scale.roll(1, 1), w.minimum),
    "scale_of_the_block_after": lambda w: _weight(w.single_codes(), w.scale.roll(-1, 1), w.minimum),
    "minimum_of_the_block_after": lambda w: _weight(w.single_codes(), w.scale, w.minimum.roll(-1, 1)),
    "scale_of_the_next_row": lambda w: _weight(w.single_codes(), w.scale.roll(-1, 0), w.minimum),
    "nibbles_swapped": lambda w: Q41Weight(_swapped(w), w.scale, w.minimum).dequantised(),
    "nibbles_by_turns": lambda w: _weight(_by_turns(w), w.scale, w.minimum),
    "codes_from_minus_8": lambda w: _weight(w.single_codes().int() - 8, w.scale, w.minimum),
    "codes_of_3_bits": lambda w: _weight(w.single_codes() & 7, w.scale, w.minimum),
    "scale_of_8_bits": lambda w: _weight(w.single_codes(), w.scale.to(torch.float8_e4m3fn), w.minimum),
    "last_block_dropped": lambda w: F.pad(w.dequantised()[:, :-BLOCK], (0, BLOCK)),
}
for _name, _made in _WEIGHTS.items():
    wrong("linear", support=Q4_1)(_with(_made, f"q4_1_{_name}"))


@wrong("linear", support=Q4_1)
def q4_1_truncating_store(x: Tensor, handle: Q41Weight, bias: Tensor | None = None) -> Tensor:
    y = F.linear(x.double(), handle.dequantised().double(), None if bias is None else bias.double())
    return toward_zero(y, torch.bfloat16 if x.dtype == torch.float32 else x.dtype).to(x.dtype)


@wrong("linear", support=Q4_1)
def q4_1_fp16_accumulator(x: Tensor, handle: Q41Weight, bias: Tensor | None = None) -> Tensor:
    w = handle.dequantised()
    total = x.new_zeros((x.shape[0], len(w)), dtype=torch.float16)
    for k in range(0, x.shape[1], BLOCK):
        total = (total.float() + x[:, k : k + BLOCK].float() @ w[:, k : k + BLOCK].T).half()
    return (total.float() if bias is None else total.float() + bias.float()).to(x.dtype)


@wrong("linear", support=Q4_1)
def q4_1_activations_of_8_bits(x: Tensor, handle: Q41Weight, bias: Tensor | None = None) -> Tensor:
    """Quantises x too, which nobody has asked for."""
    codes, scale = dense.quant_act(x)
    return dense.linear((codes * scale[:, None]).to(x.dtype), handle, bias)


# Right: weights in the dtype of x or wider, made in any form.

_RIGHT: dict[str, Callable[[Q41Weight, torch.dtype], Tensor]] = {
    "weights_in_float32": lambda w, dtype: w.dequantised(),
    "weights_rounded": lambda w, dtype: w.dequantised().to(dtype).float(),
    "scales_rounded": lambda w, dtype: _weight(w.single_codes(), w.scale.to(dtype), w.minimum.to(dtype)),
    "codes_from_minus_8_with_a_zero": lambda w, dtype: _weight(
        w.single_codes().int() - 8, w.scale.to(dtype), (w.minimum.float() + 8 * w.scale.float()).to(dtype)
    ),
    "rounded_twice": lambda w, dtype: (
        _weight(w.single_codes(), w.scale.to(dtype), w.minimum.to(dtype)).to(dtype).float()
    ),
}


def _right(weight: Callable[[Q41Weight, torch.dtype], Tensor], name: str) -> Kernel:
    def kernel(x: Tensor, handle: Q41Weight, bias: Tensor | None = None) -> Tensor:
        y = F.linear(x.float(), weight(handle, x.dtype), None if bias is None else bias.float())
        return y.to(x.dtype)

    kernel.__name__ = f"q4_1_{name}"
    return kernel


for _name, _maker in _RIGHT.items():
    right("linear", support=Q4_1)(_right(_maker, _name))


@right("linear", support=Q4_1)
def q4_1_minimums_apart(x: Tensor, handle: Q41Weight, bias: Tensor | None = None) -> Tensor:
    """Blocks of codes are multiplied, then scaled; minimums multiply the sums of blocks of x."""
    blocks = x.float().reshape(x.shape[0], x.shape[1] // BLOCK, BLOCK)
    codes = handle.single_codes().view(len(handle.codes), -1, BLOCK).float()
    products = torch.einsum("tbk,nbk->tbn", blocks, codes)
    y = torch.einsum("tbn,nb->tn", products, handle.scale.float()) + blocks.sum(-1) @ handle.minimum.float().T
    return (y if bias is None else y + bias.float()).to(x.dtype)


# pack_weight


def _packs(name: str, change: Callable[[Tensor], Tensor]) -> None:
    def kernel(w: Tensor, *, scheme: str) -> Tensor:
        return change(w)

    kernel.__name__ = name
    wrong("pack_weight", more={"linear": dense.linear}, support=DENSE)(kernel)


_packs("last_row_zero", lambda w: w * (torch.arange(len(w)) < len(w) - 1)[:, None])
_packs("last_column_zero", lambda w: w * (torch.arange(w.shape[1]) < w.shape[1] - 1))
_packs("rows_swapped", lambda w: torch.cat((w[1:2], w[:1], w[2:])))
_packs("columns_shifted", lambda w: w.roll(1, 1))
_packs("in_8_bits", lambda w: w.to(torch.float8_e4m3fn).to(w.dtype))
_packs("as_joined", lambda w: torch.as_strided(w, w.shape, (w.shape[1], 1), w.storage_offset()).contiguous())
_packs("truncated", lambda w: toward_zero(w.double() * 0.999, w.dtype))


def _transposed_linear(x: Tensor, handle: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x, handle.T, bias)


@right("pack_weight", more={"linear": _transposed_linear}, support=DENSE)
def transposed(w: Tensor, *, scheme: str) -> Tensor:
    return w.T.contiguous()


@right("pack_weight", more={"linear": dense.linear})
def copied(w: dense.Weight, *, scheme: str) -> dense.Weight:
    return w.clone() if isinstance(w, Tensor) else type(w)(*(part.clone() for part in w))


# quant_act


def _quantised(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    safe = torch.where(scale == 0, 1, scale)
    codes = (x.float() / safe[:, None]).round().clamp(-127, 127)
    return codes.to(torch.int8), scale


def _greatest(x: Tensor) -> Tensor:
    return x.float().abs().amax(-1)


_SCALES: dict[str, Callable[[Tensor], Tensor]] = {
    "of_128": lambda x: _greatest(x) / 128,
    "of_all_rows": lambda x: _greatest(x).max().expand(x.shape[0]).contiguous() / 127 if x.shape[0] else _greatest(x),
    "of_the_row_before": lambda x: _greatest(x).roll(1) / 127,
    "sign_forgotten": lambda x: x.float().amax(-1).clamp(min=0) / 127,
    "last_column_forgotten": lambda x: _greatest(F.pad(x[:, :-1], (1, 0))) / 127,
    "in_bf16": lambda x: (_greatest(x) / 127).bfloat16().float(),
    "in_fp16": lambda x: (_greatest(x) / 127).half().float(),
    "of_two_sides": lambda x: (x.float().amax(-1) - x.float().amin(-1)) / 254,
}


def _scaled(scale: Callable[[Tensor], Tensor], name: str) -> Kernel:
    def kernel(x: Tensor) -> tuple[Tensor, Tensor]:
        return _quantised(x, scale(x))

    kernel.__name__ = f"scale_{name}"
    return kernel


for _name, _scale in _SCALES.items():
    wrong("quant_act")(_scaled(_scale, _name))


@wrong("quant_act")
def ties_away(x: Tensor) -> tuple[Tensor, Tensor]:
    _, scale = dense.quant_act(x)
    value = x.float() / torch.where(scale == 0, 1, scale)[:, None]
    return ((value.abs() + 0.5).floor() * value.sign()).clamp(-127, 127).to(torch.int8), scale


@wrong("quant_act")
def cut_off(x: Tensor) -> tuple[Tensor, Tensor]:
    _, scale = dense.quant_act(x)
    return (x.float() / torch.where(scale == 0, 1, scale)[:, None]).trunc().to(torch.int8), scale


@wrong("quant_act")
def rounded_down(x: Tensor) -> tuple[Tensor, Tensor]:
    _, scale = dense.quant_act(x)
    return (x.float() / torch.where(scale == 0, 1, scale)[:, None]).floor().clamp(-127, 127).to(torch.int8), scale


@wrong("quant_act")
def quotient_in_bf16(x: Tensor) -> tuple[Tensor, Tensor]:
    _, scale = dense.quant_act(x)
    value = (x.float() / torch.where(scale == 0, 1, scale)[:, None]).bfloat16().float()
    return value.round().clamp(-127, 127).to(torch.int8), scale


@wrong("quant_act")
def least_scale(x: Tensor) -> tuple[Tensor, Tensor]:
    """Keeps the scale from 0 by a number that is not small enough."""
    return _quantised(x, _greatest(x).clamp(min=1e-5) / 127)


@wrong("quant_act")
def rows_taken_as_joined(x: Tensor) -> tuple[Tensor, Tensor]:
    return dense.quant_act(torch.as_strided(x, x.shape, (x.shape[1], 1), x.storage_offset()))


@right("quant_act")
def by_the_inverse(x: Tensor) -> tuple[Tensor, Tensor]:
    greatest = _greatest(x)
    inverse = torch.where(greatest == 0, 0, 127 / greatest)
    return (x.float() * inverse[:, None]).round().to(torch.int8), greatest * (1 / 127)


@right("quant_act")
def in_float64(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.double().abs().amax(-1) / 127
    codes = (x.double() / torch.where(scale == 0, 1, scale)[:, None]).round()
    return codes.to(torch.int8), scale.float()


@right("quant_act")
def magnitude_by_two_sides(x: Tensor) -> tuple[Tensor, Tensor]:
    return _quantised(x, torch.maximum(x.float().amax(-1), -x.float().amin(-1)) / 127)


@right("quant_act")
def inverse_of_the_scale(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = _greatest(x) / 127
    inverse = torch.where(scale == 0, 0, 1 / scale)
    return (x.float() * inverse[:, None]).round().clamp(-127, 127).to(torch.int8), scale


@right("quant_act")
def by_a_magic_number(x: Tensor) -> tuple[Tensor, Tensor]:
    """Adds and subtracts 1.5 * 2^23, which rounds ties to even."""
    scale = _greatest(x) / 127
    value = x.float() / torch.where(scale == 0, 1, scale)[:, None]
    return ((value + 1.5 * 2**23) - 1.5 * 2**23).to(torch.int8), scale


@right("quant_act")
def greatest_in_pieces(x: Tensor) -> tuple[Tensor, Tensor]:
    pieces = torch.stack([_greatest(part) for part in F.pad(x, (0, 3)).tensor_split(4, -1)])
    return _quantised(x, pieces.amax(0) / 127)


add_cheats("quant_act", dense.quant_act)
