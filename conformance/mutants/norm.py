"""Wrong and right kernels of rms_norm."""

from __future__ import annotations

from collections.abc import Callable

import torch

from conformance.mutants.cheats import add_cheats
from conformance.mutants.mutant import cheat, right, wrong
from conformance.mutants.numbers import cut, toward_zero
from core.kernels.reference import dense
from core.plugin.facts import Support

Tensor = torch.Tensor


def _mean(x: Tensor) -> Tensor:
    """Of the squares of a row, in float32."""
    return x.float().pow(2).mean(-1, keepdim=True)


def _finish(x: Tensor, inverse: Tensor, w: Tensor) -> Tensor:
    return w * (x.float() * inverse).to(x.dtype)


def _with(inverse: Callable[[Tensor, float], Tensor]) -> Callable[..., Tensor]:
    """A kernel that has 1 / rms otherwise."""

    def kernel(x: Tensor, w: Tensor, *, eps: float) -> Tensor:
        return _finish(x, inverse(x, eps), w)

    return kernel


def _narrow_mean(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Squares and their sum in a narrow dtype."""
    return x.to(dtype).pow(2).mean(-1, keepdim=True).float()


def _padded(x: Tensor) -> Tensor:
    """The mean over columns up to a multiple of 64, and 64 more where there is one already."""
    return _mean(x) * x.shape[-1] / (x.shape[-1] // 64 * 64 + 64)


INVERSES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "eps_ignored": lambda x, eps: torch.rsqrt(_mean(x)),
    "eps_outside": lambda x, eps: 1 / (_mean(x).sqrt() + eps),
    "eps_constant": lambda x, eps: torch.rsqrt(_mean(x) + 1e-6),
    "eps_in_the_sum": lambda x, eps: torch.rsqrt(_mean(x) + eps / x.shape[-1]),
    "eps_squared": lambda x, eps: torch.rsqrt(_mean(x) + eps * eps),
    "fp16_variance": lambda x, eps: torch.rsqrt(_narrow_mean(x, torch.float16) + eps),
    "bf16_variance": lambda x, eps: torch.rsqrt(_narrow_mean(x, torch.bfloat16) + eps),
    "padded_n": lambda x, eps: torch.rsqrt(_padded(x) + eps),
    "n_minus_one": lambda x, eps: torch.rsqrt(_mean(x) * x.shape[-1] / max(1, x.shape[-1] - 1) + eps),
    "no_root": lambda x, eps: 1 / (_mean(x) + eps),
    "mean_of_magnitudes": lambda x, eps: 1 / (x.float().abs().mean(-1, keepdim=True) + eps),
    "rsqrt_of_12_bits": lambda x, eps: cut(torch.rsqrt(_mean(x) + eps), 12),
    "rms_of_the_row_before": lambda x, eps: torch.rsqrt(_mean(x) + eps).roll(1, 0),
    "rms_of_all_rows": lambda x, eps: torch.rsqrt(_mean(x).mean(0, keepdim=True) + eps),
    "last_square_dropped": lambda x, eps: torch.rsqrt(_mean(x[..., :-1]) * (1 - 1 / x.shape[-1]) + eps),
    "tail_dropped": lambda x, eps: torch.rsqrt(_mean(x[..., : x.shape[-1] // 8 * 8]) + eps),
    "last_square_twice": lambda x, eps: torch.rsqrt(_mean(x) + x[..., -1:].float() ** 2 / x.shape[-1] + eps),
    "sum_of_squares": lambda x, eps: torch.rsqrt(_mean(x) * x.shape[-1] + eps),
    "a_row_with_nan_spoils_all": lambda x, eps: torch.rsqrt(_mean(x) + eps + 0 * x.float().sum()),
}

for _name, _inverse in INVERSES.items():
    _kernel = _with(_inverse)
    _kernel.__name__ = _name
    wrong("rms_norm")(_kernel)


@wrong("rms_norm")
def mean_subtracted(x: Tensor, w: Tensor, *, eps: float) -> Tensor:
    wide = x.float()
    return dense.rms_norm((wide - wide.mean(-1, keepdim=True)).to(x.dtype), w, eps=eps)


@wrong("rms_norm")
def weight_ignored(x: Tensor, w: Tensor, *, eps: float) -> Tensor:
    return dense.rms_norm(x, torch.ones_like(w), eps=eps)


@wrong("rms_norm")
def weight_plus_one(x: Tensor, w: Tensor, *, eps: float) -> Tensor:
    return dense.rms_norm(x, w + 1, eps=eps)


@wrong("rms_norm")
def weight_shifted(x: Tensor, w: Tensor, *, eps: float) -> Tensor:
    return dense.rms_norm(x, w.roll(1), eps=eps)


@wrong("rms_norm")
def weight_in_bf16(x: Tensor, w: Tensor, *, eps: float) -> Tensor:
    return dense.rms_norm(x, w.bfloat16().to(w.dtype), eps=eps)


@wrong("rms_norm")
def last_column_not_normed(x: Tensor, w: Tensor, *, eps: float) -> Tensor:
    y = dense.rms_norm(x, w, eps=eps)
    y[..., -1] = x[..., -1]
    return y


@wrong("rms_norm")
def truncating_store(x: Tensor, w: Tensor, *, eps: float) -> Tensor:
    wide = x.double() * torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True) + eps)
    return toward_zero(wide * w.double(), x.dtype)


@wrong("rms_norm")
def three_roundings(x: Tensor, w: Tensor, *, eps: float) -> Tensor:
    inverse = torch.rsqrt(_mean(x) + eps).to(torch.bfloat16 if x.dtype == torch.float32 else x.dtype)
    return (x * inverse).to(x.dtype) * w


@wrong("rms_norm")
def in_bf16(x: Tensor, w: Tensor, *, eps: float) -> Tensor:
    return dense.rms_norm(x.bfloat16(), w.bfloat16(), eps=eps).to(x.dtype)


@wrong("rms_norm")
def rows_taken_as_joined(x: Tensor, w: Tensor, *, eps: float) -> Tensor:
    """Reads views as if there were nothing between their rows."""
    strides = torch.empty(x.shape, device="meta").stride()
    return dense.rms_norm(torch.as_strided(x, x.shape, strides, x.storage_offset()), w, eps=eps)


@cheat("rms_norm", support=Support(batch_invariant=True))
def sums_by_batch(x: Tensor, w: Tensor, *, eps: float) -> Tensor:
    """Sums squares in another order when there are few rows, and says that it does not."""
    parts = 8 if x.shape[0] < 8 else 1
    return _finish(x, torch.rsqrt(_split_mean(x, parts) + eps), w)


def _split_mean(x: Tensor, parts: int) -> Tensor:
    sums = torch.stack([part.pow(2).sum(-1) for part in x.float().tensor_split(parts, -1)])
    return sums.sum(0)[..., None] / x.shape[-1]


# Right


@right("rms_norm")
def multiplied_in_float32(x: Tensor, w: Tensor, *, eps: float) -> Tensor:
    return (w.float() * (x.float() * torch.rsqrt(_mean(x) + eps))).to(x.dtype)


@right("rms_norm")
def in_float64(x: Tensor, w: Tensor, *, eps: float) -> Tensor:
    return dense.rms_norm(x.double(), w.double(), eps=eps).to(x.dtype)


@right("rms_norm")
def native(x: Tensor, w: Tensor, *, eps: float) -> Tensor:
    return torch.nn.functional.rms_norm(x.float(), w.shape, w.float(), eps).to(x.dtype)


@right("rms_norm")
def sum_in_order(x: Tensor, w: Tensor, *, eps: float) -> Tensor:
    """One square after the other, as a single thread does."""
    total = x.float().pow(2).cumsum(-1)[..., -1:]
    return _finish(x, torch.rsqrt(total / x.shape[-1] + eps), w)


@right("rms_norm")
def split_sums(x: Tensor, w: Tensor, *, eps: float) -> Tensor:
    return _finish(x, torch.rsqrt(_split_mean(x, 16) + eps), w)


@right("rms_norm")
def reversed_order(x: Tensor, w: Tensor, *, eps: float) -> Tensor:
    return _finish(x, torch.rsqrt(_mean(x.flip(-1)) + eps), w)


@right("rms_norm")
def divided_by_the_root(x: Tensor, w: Tensor, *, eps: float) -> Tensor:
    return w * (x.float() / (_mean(x) + eps).sqrt()).to(x.dtype)


@right("rms_norm")
def weight_first(x: Tensor, w: Tensor, *, eps: float) -> Tensor:
    return (x.float() * w.float() * torch.rsqrt(_mean(x) + eps)).to(x.dtype)


add_cheats("rms_norm", dense.rms_norm)
