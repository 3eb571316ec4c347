"""Wrong and right kernels of act_mul, scale_add and softcap."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

from conformance.mutants.cheats import add_cheats
from conformance.mutants.mutant import right, wrong
from conformance.mutants.numbers import rounded, toward_zero
from core.kernels.reference import dense
from core.kernels.row import Kernel

Tensor = torch.Tensor
Act = Callable[[Tensor], Tensor]

_RIGHT: dict[str, Act] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda g: F.gelu(g, approximate="tanh"),
}
_ROOT = math.sqrt(2 / math.pi)


def _joined(x: Tensor) -> Tensor:
    """A view [T, K] as if there were nothing between its rows."""
    return torch.as_strided(x, x.shape, (x.shape[1], 1), x.storage_offset())


def _act_mul(x: Tensor, act: Act) -> Tensor:
    gate, up = x.float().chunk(2, -1)
    return (act(gate) * up).to(x.dtype)


def _with(name: str, **acts: Act) -> Kernel:
    """A kernel that has some activations otherwise."""

    def kernel(x: Tensor, *, act: str) -> Tensor:
        return _act_mul(x, acts.get(act, _RIGHT[act]))

    kernel.__name__ = name
    return kernel


def _tanh_by_exp(z: Tensor) -> Tensor:
    """NaN where exp is infinite."""
    e = torch.exp(2 * z)
    return (e - 1) / (e + 1)


def _inner(g: Tensor) -> Tensor:
    return _ROOT * (g + 0.044715 * g * g * g)


for _kernel in (
    _with("silu_without_x", silu=torch.sigmoid),
    _with("silu_with_nan_far_out", silu=lambda g: g * torch.exp(g) / (1 + torch.exp(g))),
    _with("silu_by_fp16_exp", silu=lambda g: g / (1 + torch.exp(-g.half()).float())),
    _with("silu_hard", silu=F.hardswish),
    _with("silu_steeper", silu=lambda g: g * torch.sigmoid(1.01 * g)),
    _with("silu_is_relu", silu=F.relu),
    _with("gelu_by_tanh", gelu=_RIGHT["gelu_tanh"]),
    _with("gelu_by_sigmoid", gelu=lambda g: g * torch.sigmoid(1.702 * g)),
    _with("gelu_without_root", gelu=lambda g: g * 0.5 * (1 + torch.erf(g))),
    _with("gelu_tanh_by_erf", gelu_tanh=_RIGHT["gelu"]),
    _with("gelu_tanh_with_nan_far_out", gelu_tanh=lambda g: 0.5 * g * (1 + _tanh_by_exp(_inner(g)))),
    _with("gelu_tanh_without_cube", gelu_tanh=lambda g: 0.5 * g * (1 + torch.tanh(_ROOT * g))),
    _with("gelu_tanh_in_bf16", gelu_tanh=lambda g: F.gelu(g.bfloat16(), approximate="tanh").float() * 0.999),
    _with("always_silu", gelu=F.silu, gelu_tanh=F.silu),
):
    wrong("act_mul")(_kernel)


@wrong("act_mul")
def halves_swapped(x: Tensor, *, act: str) -> Tensor:
    return _act_mul(torch.cat(x.chunk(2, -1)[::-1], -1), _RIGHT[act])


@wrong("act_mul")
def gates_by_turns(x: Tensor, *, act: str) -> Tensor:
    return _act_mul(torch.cat((x[:, ::2], x[:, 1::2]), -1), _RIGHT[act])


@wrong("act_mul")
def act_ignored(x: Tensor, *, act: str) -> Tensor:
    return _act_mul(x, lambda gate: gate)


@wrong("act_mul")
def added(x: Tensor, *, act: str) -> Tensor:
    gate, up = x.float().chunk(2, -1)
    return (_RIGHT[act](gate) + up).to(x.dtype)


@wrong("act_mul")
def three_roundings(x: Tensor, *, act: str) -> Tensor:
    """The part of x that passes is rounded before x multiplies it."""
    gate, up = x.chunk(2, -1)
    narrow = torch.bfloat16 if x.dtype == torch.float32 else x.dtype
    wide = gate.float()
    part = torch.where(gate == 0, 0, _RIGHT[act](wide) / wide).to(narrow).to(x.dtype)
    return gate * part * up


@wrong("act_mul")
def act_mul_truncating_store(x: Tensor, *, act: str) -> Tensor:
    gate, up = x.double().chunk(2, -1)
    narrow = torch.bfloat16 if x.dtype == torch.float32 else x.dtype
    return toward_zero(_RIGHT[act](gate) * up, narrow).to(x.dtype)


@wrong("act_mul")
def last_column_of_the_gate(x: Tensor, *, act: str) -> Tensor:
    y = _act_mul(x, _RIGHT[act])
    y[:, -1] = _RIGHT[act](x.chunk(2, -1)[0][:, -1])
    return y


@wrong("act_mul")
def act_mul_rows_taken_as_joined(x: Tensor, *, act: str) -> Tensor:
    return _act_mul(_joined(x), _RIGHT[act])


def _silu_by_exp2(g: Tensor) -> Tensor:
    return g / (1 + torch.exp2(-g * 1.4426950408889634))


for _kernel in (
    _with("exp_by_exp2", silu=_silu_by_exp2),
    _with("exp_of_22_bits", silu=lambda g: g / (1 + rounded(torch.exp(-g).clamp(max=1e38), 22))),
    _with("silu_by_tanh", silu=lambda g: g * 0.5 * (1 + torch.tanh(g / 2))),
    _with("gelu_by_erf", gelu=lambda g: 0.5 * g * (1 + torch.erf(g * 0.70710678))),
    _with("gelu_by_erfc", gelu=lambda g: 0.5 * g * torch.erfc(-g * 0.70710678)),
    _with("gelu_tanh_by_sigmoid", gelu_tanh=lambda g: g * torch.sigmoid(2 * _inner(g))),
    _with("tanh_of_22_bits", gelu_tanh=lambda g: 0.5 * g * (1 + rounded(torch.tanh(_inner(g)), 22))),
):
    right("act_mul")(_kernel)


@right("act_mul")
def rounded_once(x: Tensor, *, act: str) -> Tensor:
    return _act_mul(x, _RIGHT[act])


@right("act_mul")
def rounded_twice(x: Tensor, *, act: str) -> Tensor:
    gate, up = x.chunk(2, -1)
    return _RIGHT[act](gate.float()).to(x.dtype) * up


@right("act_mul")
def act_mul_in_float64(x: Tensor, *, act: str) -> Tensor:
    return dense.act_mul(x.double(), act=act).to(x.dtype)


add_cheats("act_mul", dense.act_mul)


# scale_add


def _scale_add(x: Tensor, y: Tensor, scale: float) -> Tensor:
    return (x.float() * scale + y.float()).to(x.dtype)


def _narrow(x: Tensor) -> torch.dtype:
    return torch.bfloat16 if x.dtype == torch.float32 else x.dtype


_ADDS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "scale_ignored": lambda x, y, scale: _scale_add(x, y, 1.0),
    "other_scaled": lambda x, y, scale: _scale_add(y, x, scale),
    "sum_scaled": lambda x, y, scale: ((x.float() + y.float()) * scale).to(x.dtype),
    "subtracted": lambda x, y, scale: _scale_add(x, -y, scale),
    "second_ignored": lambda x, y, scale: (x.float() * scale).to(x.dtype),
    "scale_less_one": lambda x, y, scale: _scale_add(x, y, scale - 1),
    "product_rounded": lambda x, y, scale: (x.float() * scale).to(_narrow(x)).to(x.dtype) + y,
    "scale_rounded": lambda x, y, scale: _scale_add(x, y, float(torch.tensor(scale).to(_narrow(x)))),
    "truncated": lambda x, y, scale: toward_zero(x.double() * scale + y.double(), _narrow(x)).to(x.dtype),
    "second_of_the_row_before": lambda x, y, scale: _scale_add(x, y.roll(1, 0), scale),
    "rows_taken_as_joined": lambda x, y, scale: _scale_add(_joined(x), _joined(y), scale),
}


def _adds(name: str, kernel: Callable[[Tensor, Tensor, float], Tensor]) -> Kernel:
    def scaled(x: Tensor, y: Tensor, *, scale: float) -> Tensor:
        return kernel(x, y, scale)

    scaled.__name__ = name
    return scaled


for _name, _add in _ADDS.items():
    wrong("scale_add")(_adds(_name, _add))


@wrong("scale_add")
def scale_add_in_place(x: Tensor, y: Tensor, *, scale: float) -> Tensor:
    """Writes to x, and so to y where that is x."""
    return x.mul_(scale).add_(y)


for _name, _add in {
    "fused": lambda x, y, scale: torch.add(y.float(), x.float(), alpha=scale).to(x.dtype),
    "in_wide_float": lambda x, y, scale: (x.double() * scale + y.double()).to(x.dtype),
    "scale_in_float32": lambda x, y, scale: (x.float() * torch.tensor(scale) + y.float()).to(x.dtype),
    "from_the_second": lambda x, y, scale: y.float().add(x.float() * scale).to(x.dtype),
}.items():
    right("scale_add")(_adds(_name, _add))

add_cheats("scale_add", dense.scale_add)


# softcap


def _caps(name: str, kernel: Callable[[Tensor, float], Tensor]) -> Kernel:
    def capped(x: Tensor, *, cap: float) -> Tensor:
        return kernel(x.float(), cap).to(x.dtype)

    capped.__name__ = name
    return capped


for _name, _cap in {
    "cap_ignored": lambda x, cap: x,
    "cap_of_30": lambda x, cap: 30 * torch.tanh(x / 30),
    "not_divided": lambda x, cap: cap * torch.tanh(x),
    "not_multiplied": lambda x, cap: torch.tanh(x / cap),
    "clamped": lambda x, cap: x.clamp(-cap, cap),
    "nan_far_out": lambda x, cap: cap * _tanh_by_exp(x / cap),
    "tanh_of_11_bits": lambda x, cap: cap * rounded(torch.tanh(x / cap), 11),
    "tanh_in_bf16": lambda x, cap: cap * torch.tanh(x / cap).bfloat16().float(),
    "quotient_in_bf16": lambda x, cap: cap * torch.tanh((x / cap).bfloat16().float()),
    "half_as_steep": lambda x, cap: cap * torch.tanh(x / cap / 2),
    "sigmoid": lambda x, cap: cap * torch.sigmoid(x / cap),
    "series": lambda x, cap: x - x**3 / (3 * cap * cap),
    "last_column_left": lambda x, cap: torch.cat((cap * torch.tanh(x[:, :-1] / cap), x[:, -1:]), -1),
}.items():
    wrong("softcap")(_caps(_name, _cap))


@wrong("softcap")
def softcap_truncated(x: Tensor, *, cap: float) -> Tensor:
    return toward_zero(cap * torch.tanh(x.double() / cap), _narrow(x)).to(x.dtype)


@wrong("softcap")
def softcap_rows_taken_as_joined(x: Tensor, *, cap: float) -> Tensor:
    return dense.softcap(_joined(x), cap=cap)


for _name, _cap in {
    "in_wide_float": lambda x, cap: cap * torch.tanh(x.double() / cap),
    "by_the_inverse": lambda x, cap: cap * torch.tanh(x * (1 / cap)),
    "by_sigmoid": lambda x, cap: cap * (2 * torch.sigmoid(2 * x / cap) - 1),
    "by_a_falling_exp": lambda x, cap: cap * x.sign() * (1 - 2 / (torch.exp(2 * x.abs() / cap) + 1)),
    "of_22_bits": lambda x, cap: cap * rounded(torch.tanh(x / cap), 22),
}.items():
    right("softcap")(_caps(_name, _cap))

add_cheats("softcap", dense.softcap)
