"""Wrong and right kernels of linear with weights of 8 bits that share a scale in blocks."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from conformance.mutants.mutant import right, wrong
from conformance.mutants.numbers import toward_zero
from core.kernels.reference import dense
from core.kernels.row import Kernel
from core.kernels.schemes import BLOCK, Q80Weight
from core.plugin.facts import Support

Tensor = torch.Tensor
Q8_0 = Support(schemes=frozenset({"q8_0"}))


def _weight(codes: Tensor, scale: Tensor) -> Tensor:
    """[N, K] float32 of codes of any dtype."""
    return (codes.view(len(codes), -1, BLOCK).float() * scale.float()[..., None]).view(codes.shape)


def _with(weight: Callable[[Q80Weight, torch.dtype], Tensor], name: str) -> Kernel:
    """A kernel that dequantises in its own way, then multiplies as it should."""

    def kernel(x: Tensor, handle: Q80Weight, bias: Tensor | None = None) -> Tensor:
        y = F.linear(x.float(), weight(handle, x.dtype), None if bias is None else bias.float())
        return y.to(x.dtype)

    kernel.__name__ = f"q8_0_{name}"
    return kernel


def _by_halves(codes: Tensor) -> Tensor:
    """Takes the codes of a block for two halves whose turns alternate."""
    return codes.view(len(codes), -1, 2, BLOCK // 2).transpose(2, 3).reshape(codes.shape)


_WRONG: dict[str, Callable[[Q80Weight, torch.dtype], Tensor]] = {
    "scale_of_the_block_before": lambda w, dtype: _weight(w.codes, w.scale.roll(1, 1)),
    "scale_of_the_block_after": lambda w, dtype: _weight(w.codes, w.scale.roll(-1, 1)),
    "scale_of_the_next_row": lambda w, dtype: _weight(w.codes, w.scale.roll(-1, 0)),
    "scale_without_its_sign": lambda w, dtype: _weight(w.codes, w.scale.abs()),
    "scale_of_8_bits": lambda w, dtype: _weight(w.codes, w.scale.to(torch.float8_e4m3fn)),
    "codes_without_a_sign": lambda w, dtype: _weight(w.codes.view(torch.uint8), w.scale),
    "codes_of_7_bits": lambda w, dtype: _weight(w.codes & -2, w.scale),
    "codes_by_halves": lambda w, dtype: _weight(_by_halves(w.codes), w.scale),
    "last_block_dropped": lambda w, dtype: F.pad(w.dequantised()[:, :-BLOCK], (0, BLOCK)),
}
for _name, _made in _WRONG.items():
    wrong("linear", support=Q8_0)(_with(_made, _name))


@wrong("linear", support=Q8_0)
def q8_0_truncating_store(x: Tensor, handle: Q80Weight, bias: Tensor | None = None) -> Tensor:
    y = F.linear(x.double(), handle.dequantised().double(), None if bias is None else bias.double())
    return toward_zero(y, torch.bfloat16 if x.dtype == torch.float32 else x.dtype).to(x.dtype)


@wrong("linear", support=Q8_0)
def q8_0_activations_of_8_bits(x: Tensor, handle: Q80Weight, bias: Tensor | None = None) -> Tensor:
    """Quantises x too, which nobody has asked for."""
    codes, scale = dense.quant_act(x)
    return dense.linear((codes * scale[:, None]).to(x.dtype), handle, bias)


_RIGHT: dict[str, Callable[[Q80Weight, torch.dtype], Tensor]] = {
    "weights_in_float32": lambda w, dtype: w.dequantised(),
    "weights_rounded": lambda w, dtype: w.dequantised().to(dtype).float(),
    "rounded_twice": lambda w, dtype: _weight(w.codes, w.scale.to(dtype)).to(dtype).float(),
}
for _name, _made in _RIGHT.items():
    right("linear", support=Q8_0)(_with(_made, _name))


@right("linear", support=Q8_0)
def q8_0_scales_apart(x: Tensor, handle: Q80Weight, bias: Tensor | None = None) -> Tensor:
    """Blocks of codes are multiplied, then scaled."""
    blocks = x.float().reshape(x.shape[0], x.shape[1] // BLOCK, BLOCK)
    products = torch.einsum("tbk,nbk->tbn", blocks, handle.codes.view(len(handle.codes), -1, BLOCK).float())
    y = torch.einsum("tbn,nb->tn", products, handle.scale.float())
    return (y if bias is None else y + bias.float()).to(x.dtype)
