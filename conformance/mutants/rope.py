"""Wrong and right kernels of rope."""

from __future__ import annotations

from collections.abc import Callable

import torch

from conformance.mutants.cheats import add_cheats
from conformance.mutants.mutant import right, wrong
from conformance.mutants.numbers import toward_zero
from core.kernels.reference import dense
from core.kernels.row import Kernel

Tensor = torch.Tensor


def _halves(x: Tensor, cos_sin: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """First and second of the pairs, cosines and sines, in float32."""
    num = cos_sin.shape[-1]
    first, second = x[..., :num].float().chunk(2, -1)
    cos, sin = cos_sin[:, None].float().chunk(2, -1)
    return first, second, cos, sin


def _join(first: Tensor, second: Tensor, x: Tensor, num: int) -> Tensor:
    return torch.cat((first.to(x.dtype), second.to(x.dtype), x[..., num:]), -1)


def _turned(x: Tensor, cos_sin: Tensor) -> Tensor:
    """Right: the sums alone are rounded."""
    first, second, cos, sin = _halves(x, cos_sin)
    return _join(first * cos - second * sin, second * cos + first * sin, x, cos_sin.shape[-1])


def _swap(table: Tensor) -> Tensor:
    return torch.cat(table.chunk(2, -1)[::-1], -1)


def _negated_sines(table: Tensor) -> Tensor:
    cos, sin = table.chunk(2, -1)
    return torch.cat((cos, -sin), -1)


_TABLES: dict[str, Callable[[Tensor], Tensor]] = {
    "sines_first": _swap,
    "other_way_round": _negated_sines,
    "position_before": lambda t: t.roll(1, 0),
    "position_after": lambda t: t.roll(-1, 0),
    "first_position": lambda t: t[:1].expand_as(t),
    "table_by_turns": lambda t: torch.cat((t[:, ::2], t[:, 1::2]), -1),
    "angle_before": lambda t: torch.cat([part.roll(1, -1) for part in t.chunk(2, -1)], -1),
    "table_in_fp8": lambda t: t.to(torch.float8_e4m3fn).to(t.dtype),
}


def _with_table(change: Callable[[Tensor], Tensor], name: str) -> Kernel:
    def kernel(x: Tensor, cos_sin: Tensor) -> Tensor:
        return _turned(x, change(cos_sin))

    kernel.__name__ = name
    return kernel


for _name, _change in _TABLES.items():
    wrong("rope")(_with_table(_change, _name))


@wrong("rope")
def neighbours_paired(x: Tensor, cos_sin: Tensor) -> Tensor:
    """Pairs (2 i, 2 i + 1), as GPT-J has them."""
    num = cos_sin.shape[-1]
    cos, sin = cos_sin[:, None].float().chunk(2, -1)
    even, odd = x[..., :num:2].float(), x[..., 1:num:2].float()
    turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)
    return torch.cat((turned.to(x.dtype), x[..., num:]), -1)


@wrong("rope")
def halves_swapped(x: Tensor, cos_sin: Tensor) -> Tensor:
    first, second, cos, sin = _halves(x, cos_sin)
    return _join(second * cos + first * sin, first * cos - second * sin, x, cos_sin.shape[-1])


@wrong("rope")
def first_written_too_soon(x: Tensor, cos_sin: Tensor) -> Tensor:
    """Turns the second of a pair with the first one's result."""
    first, second, cos, sin = _halves(x, cos_sin)
    first = first * cos - second * sin
    return _join(first, second * cos + first * sin, x, cos_sin.shape[-1])


@wrong("rope")
def sign_of_the_second(x: Tensor, cos_sin: Tensor) -> Tensor:
    first, second, cos, sin = _halves(x, cos_sin)
    return _join(first * cos - second * sin, second * cos - first * sin, x, cos_sin.shape[-1])


@wrong("rope")
def rest_zero(x: Tensor, cos_sin: Tensor) -> Tensor:
    y = _turned(x, cos_sin)
    y[..., cos_sin.shape[-1] :] = 0
    return y


@wrong("rope")
def rest_shifted(x: Tensor, cos_sin: Tensor) -> Tensor:
    y = _turned(x, cos_sin)
    y[..., cos_sin.shape[-1] :] = x[..., cos_sin.shape[-1] :].roll(1, -1)
    return y


@wrong("rope")
def rest_turned(x: Tensor, cos_sin: Tensor) -> Tensor:
    """Goes on with the table from its start where a head is longer."""
    num = cos_sin.shape[-1]
    y = _turned(x, cos_sin)
    more = min(num, x.shape[-1] - num) // 2 * 2
    if more:
        table = torch.cat([part[:, : more // 2] for part in cos_sin.chunk(2, -1)], -1)
        y[..., num : num + more] = _turned(x[..., num : num + more], table)
    return y


@wrong("rope")
def pairs_over_the_head(x: Tensor, cos_sin: Tensor) -> Tensor:
    """Pairs (i, i + D/2) rather than (i, i + F/2)."""
    num, half = cos_sin.shape[-1] // 2, x.shape[-1] // 2
    if num > half or num == half:
        return _turned(x, cos_sin)
    y = x.clone()
    cos, sin = cos_sin[:, None].float().chunk(2, -1)
    first, second = x[..., :num].float(), x[..., half : half + num].float()
    y[..., :num] = (first * cos - second * sin).to(x.dtype)
    y[..., half : half + num] = (second * cos + first * sin).to(x.dtype)
    return y


@wrong("rope")
def last_head_left_out(x: Tensor, cos_sin: Tensor) -> Tensor:
    y = _turned(x, cos_sin)
    y[:, -1] = x[:, -1]
    return y


@wrong("rope")
def heads_by_position(x: Tensor, cos_sin: Tensor) -> Tensor:
    """Takes the table's row by head."""
    y = [_turned(x[:, h : h + 1], cos_sin.roll(-h, 0)) for h in range(x.shape[1])]
    return torch.cat(y, 1)


@wrong("rope")
def truncating_store(x: Tensor, cos_sin: Tensor) -> Tensor:
    num = cos_sin.shape[-1]
    first, second, cos, sin = (part.double() for part in _halves(x, cos_sin))
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    narrow = torch.bfloat16 if x.dtype == torch.float32 else x.dtype
    return torch.cat((toward_zero(turned, narrow).to(x.dtype), x[..., num:]), -1)


@wrong("rope")
def in_bf16(x: Tensor, cos_sin: Tensor) -> Tensor:
    """And with one more rounding than there may be, where x is in bfloat16 itself."""
    num = cos_sin.shape[-1]
    y = dense.rope((x[..., :num].float() * 1.01).bfloat16(), cos_sin.bfloat16()).float() / 1.01
    return torch.cat((y.to(x.dtype), x[..., num:]), -1)


@wrong("rope")
def beside_the_view(x: Tensor, cos_sin: Tensor) -> Tensor:
    """Turns one head more than it was given, in place."""
    y = _turned(x, cos_sin)
    beyond = x.storage_offset() + x.shape[1] * x.stride(1)
    room = x.untyped_storage().nbytes() // x.element_size() - beyond
    if x.numel() and (x.shape[0] - 1) * x.stride(0) + x.stride(1) <= room:
        more = torch.as_strided(x, (x.shape[0], 1, x.shape[2]), x.stride(), beyond)
        more.copy_(_turned(more, cos_sin))
    return y


@wrong("rope")
def rows_taken_as_joined(x: Tensor, cos_sin: Tensor) -> Tensor:
    strides = (x.shape[1] * x.shape[2], x.shape[2], 1)
    return _turned(torch.as_strided(x, x.shape, strides, x.storage_offset()), cos_sin)


# Right


@right("rope")
def sums_rounded_alone(x: Tensor, cos_sin: Tensor) -> Tensor:
    return _turned(x, cos_sin)


@right("rope")
def in_place(x: Tensor, cos_sin: Tensor) -> Tensor:
    return x.copy_(_turned(x, cos_sin))


@right("rope")
def in_float64(x: Tensor, cos_sin: Tensor) -> Tensor:
    return dense.rope(x.double(), cos_sin.double()).to(x.dtype)


@right("rope")
def first_product_rounded(x: Tensor, cos_sin: Tensor) -> Tensor:
    """As a multiplication and a fused one do."""
    first, second, cos, sin = _halves(x, cos_sin)
    left, right_ = (first * cos).to(x.dtype).float(), (second * cos).to(x.dtype).float()
    return _join(left - second * sin, right_ + first * sin, x, cos_sin.shape[-1])


@right("rope")
def second_product_rounded(x: Tensor, cos_sin: Tensor) -> Tensor:
    first, second, cos, sin = _halves(x, cos_sin)
    left, right_ = (second * sin).to(x.dtype).float(), (first * sin).to(x.dtype).float()
    return _join(first * cos - left, second * cos + right_, x, cos_sin.shape[-1])


@right("rope")
def by_rotated_halves(x: Tensor, cos_sin: Tensor) -> Tensor:
    """x * cos + rotate_half(x) * sin, in the dtype of x."""
    num = cos_sin.shape[-1]
    cos, sin = cos_sin[:, None].chunk(2, -1)
    first, second = x[..., :num].chunk(2, -1)
    turned = x[..., :num] * torch.cat((cos, cos), -1) + torch.cat((-second, first), -1) * torch.cat((sin, sin), -1)
    return torch.cat((turned, x[..., num:]), -1)


@right("rope")
def complex_product(x: Tensor, cos_sin: Tensor) -> Tensor:
    first, second, cos, sin = _halves(x, cos_sin)
    turned = torch.complex(first, second) * torch.complex(cos, sin)
    return _join(turned.real, turned.imag, x, cos_sin.shape[-1])


@right("rope")
def a_head_at_a_time(x: Tensor, cos_sin: Tensor) -> Tensor:
    return torch.cat([_turned(x[:, h : h + 1], cos_sin) for h in range(x.shape[1])], 1)


add_cheats("rope", dense.rope, overwrites=1)
