"""Wrong and right kernels of linear with dense weights.

A handle is the weight itself, [N, K], as the reference packs it; those of q4_1 are in quantised.py.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from conformance.mutants.cheats import add_cheats
from conformance.mutants.mutant import cheat, right, wrong
from conformance.mutants.numbers import rounded, toward_zero
from core.kernels.row import Kernel
from core.plugin.facts import Support

Tensor = torch.Tensor
DENSE = Support(schemes=frozenset({"dense"}))
CHUNK = 16


def _float32(x: Tensor, w: Tensor) -> Tensor:
    return x.float() @ w.float().T


def _store(y: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """y in float32, or wider, with the bias; rounded once."""
    return (y if bias is None else y + bias.to(y.dtype)).to(dtype)


def _chunks(x: Tensor, w: Tensor, size: int) -> list[Tensor]:
    """Products of parts of K, in float32."""
    return [_float32(x[:, k : k + size], w[:, k : k + size]) for k in range(0, x.shape[1], size)]


def _with(product: Callable[[Tensor, Tensor], Tensor], name: str) -> Kernel:
    """A kernel that multiplies otherwise, then adds the bias and rounds as it should."""

    def kernel(x: Tensor, handle: Tensor, bias: Tensor | None = None) -> Tensor:
        return _store(product(x, handle), bias, x.dtype)

    kernel.__name__ = name
    return kernel


def _narrow(x: Tensor, w: Tensor, dtype: torch.dtype) -> Tensor:
    """Chunks in float32, added up in a narrow dtype."""
    total = x.new_zeros((x.shape[0], w.shape[0]), dtype=dtype)
    for part in _chunks(x, w, CHUNK):
        total = (total.float() + part).to(dtype)
    return total.float()


def _split_in_bf16(x: Tensor, w: Tensor) -> Tensor:
    return torch.stack([p.bfloat16() for p in _chunks(x, w, -(-x.shape[1] // 4))]).float().sum(0)


def _products_rounded(x: Tensor, w: Tensor, dtype: torch.dtype) -> Tensor:
    """A row of x at a time: products [N, K] in a narrow dtype, summed in float32."""
    rows = [(row.float() * w.float()).to(dtype).float().sum(1) for row in x]
    return torch.stack(rows) if rows else x.new_zeros((0, w.shape[0]), dtype=torch.float32)


def _without_tail(x: Tensor, w: Tensor) -> Tensor:
    whole = x.shape[1] // 8 * 8
    return _float32(x[:, :whole], w[:, :whole])


def _columns_tail(x: Tensor, w: Tensor) -> Tensor:
    y = _float32(x, w)
    y[:, w.shape[0] // 32 * 32 :] = 0
    return y


def _rows_tail(x: Tensor, w: Tensor) -> Tensor:
    y = _float32(x, w)
    y[x.shape[0] // 4 * 4 :] = 0
    return y


def _past_rows(x: Tensor, w: Tensor) -> Tensor:
    """Reads x in pieces of 128 columns, and multiplies what lies beyond its row by 0."""
    room = int(x.untyped_storage().nbytes() // x.element_size() - x.storage_offset())
    more = max(0, min(-x.shape[1] % 128, room - (x.shape[0] - 1) * x.stride(0) - x.shape[1]))
    wide = torch.as_strided(x, (x.shape[0], x.shape[1] + more), x.stride(), x.storage_offset())
    return _float32(wide, F.pad(w, (0, more)))


def _as_joined(x: Tensor, w: Tensor) -> Tensor:
    return _float32(torch.as_strided(x, x.shape, (x.shape[1], 1), x.storage_offset()), w)


_PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "fp16_accumulator": lambda x, w: _narrow(x, w, torch.float16),
    "bf16_accumulator": lambda x, w: _narrow(x, w, torch.bfloat16),
    "bf16_split_k": _split_in_bf16,
    "bf16_products": lambda x, w: _products_rounded(x, w, torch.bfloat16),
    "fp16_products": lambda x, w: _products_rounded(x, w, torch.float16),
    "operands_of_11_bits": lambda x, w: rounded(x.float(), 11) @ rounded(w.float(), 11).T,
    "operands_in_bf16": lambda x, w: _float32(x.bfloat16(), w.bfloat16()),
    "k_tail_dropped": _without_tail,
    "last_k_dropped": lambda x, w: _float32(x[:, :-1], w[:, :-1]),
    "last_k_twice": lambda x, w: _float32(x, w) + _float32(x[:, -1:], w[:, -1:]),
    "first_k_twice": lambda x, w: _float32(x, w) + _float32(x[:, :1], w[:, :1]),
    "chunk_dropped": lambda x, w: _float32(x, w) - _float32(x[:, 16:32], w[:, 16:32]),
    "columns_tail_zero": _columns_tail,
    "rows_tail_zero": _rows_tail,
    "columns_shifted": lambda x, w: _float32(x, w.roll(1, 0)),
    "rows_shifted": lambda x, w: _float32(x.roll(1, 0), w),
    "k_shifted": lambda x, w: _float32(x, w.roll(1, 1)),
    "one_percent_more": lambda x, w: _float32(x, w) * 1.01,
    "past_the_row": _past_rows,
    "rows_taken_as_joined": _as_joined,
    "a_row_with_nan_spoils_all": lambda x, w: _float32(x, w) + 0 * x.float().sum(),
}
for _name, _product in _PRODUCTS.items():
    wrong("linear", support=DENSE)(_with(_product, _name))


@wrong("linear", support=DENSE)
def bias_ignored(x: Tensor, handle: Tensor, bias: Tensor | None = None) -> Tensor:
    return _store(_float32(x, handle), None, x.dtype)


@wrong("linear", support=DENSE)
def bias_twice(x: Tensor, handle: Tensor, bias: Tensor | None = None) -> Tensor:
    return _store(_float32(x, handle), None if bias is None else bias * 2, x.dtype)


@wrong("linear", support=DENSE)
def bias_shifted(x: Tensor, handle: Tensor, bias: Tensor | None = None) -> Tensor:
    return _store(_float32(x, handle), None if bias is None else bias.roll(1), x.dtype)


@wrong("linear", support=DENSE)
def bias_for_the_first_row(x: Tensor, handle: Tensor, bias: Tensor | None = None) -> Tensor:
    y = _float32(x, handle)
    if bias is not None:
        y[:1] += bias
    return y.to(x.dtype)


@wrong("linear", support=DENSE)
def rounded_before_the_bias(x: Tensor, handle: Tensor, bias: Tensor | None = None) -> Tensor:
    narrow = torch.bfloat16 if x.dtype == torch.float32 else x.dtype
    y = _float32(x, handle)
    return _store(y if bias is None else y.to(narrow).float(), bias, x.dtype)


@wrong("linear", support=DENSE)
def truncating_store(x: Tensor, handle: Tensor, bias: Tensor | None = None) -> Tensor:
    y = _store(x.double() @ handle.double().T, bias, torch.float64)
    return toward_zero(y, torch.bfloat16 if x.dtype == torch.float32 else x.dtype).to(x.dtype)


@cheat("linear", support=DENSE)
def overflow_hidden(x: Tensor, handle: Tensor, bias: Tensor | None = None) -> Tensor:
    """Gives the largest number for what is beyond it."""
    most = torch.finfo(x.dtype).max
    return _store(x.double() @ handle.double().T, bias, torch.float64).clamp(-most, most).to(x.dtype)


_columns: dict[tuple[torch.Size, torch.Size, torch.dtype], Tensor] = {}


@wrong("linear", support=DENSE)
def stale_column(x: Tensor, handle: Tensor, bias: Tensor | None = None) -> Tensor:
    """Leaves the last column as the call before it had it."""
    y = _store(_float32(x, handle), bias, x.dtype)
    key = x.shape, handle.shape, x.dtype
    last = _columns.get(key, y[:, -1] * 0)
    _columns[key] = y[:, -1].clone()
    y[:, -1] = last
    return y


@cheat("linear", support=Support(schemes=frozenset({"dense"}), batch_invariant=True))
def sums_by_batch(x: Tensor, handle: Tensor, bias: Tensor | None = None) -> Tensor:
    """Splits K where there are few rows, and says that it does not."""
    y = torch.stack(_chunks(x, handle, 64)).sum(0) if x.shape[0] < 8 else _float32(x, handle)
    return _store(y, bias, x.dtype)


# Right


def _in_order(x: Tensor, w: Tensor, size: int) -> Tensor:
    total = x.new_zeros((x.shape[0], w.shape[0]), dtype=torch.float32)
    for part in _chunks(x, w, size):
        total = total + part
    return total


def _truncating(x: Tensor, w: Tensor) -> Tensor:
    """Accumulators that cut bits off after every chunk, as matrix units do."""
    total = x.new_zeros((x.shape[0], w.shape[0]), dtype=torch.float64)
    for k in range(0, x.shape[1], CHUNK):
        part = x[:, k : k + CHUNK].double() @ w[:, k : k + CHUNK].double().T
        total = toward_zero(total + part, torch.float32).double()
    return total.float()


def _tree(x: Tensor, w: Tensor) -> Tensor:
    parts = _chunks(x, w, 32)
    while len(parts) > 1:
        parts = [sum(parts[i + 1 : i + 2], parts[i]) for i in range(0, len(parts), 2)]
    return parts[0]


_RIGHT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "in_float32": _float32,
    "in_float64": lambda x, w: x.double() @ w.double().T,
    "in_blocks": lambda x, w: _in_order(x, w, 128),
    "one_after_another": lambda x, w: _in_order(x, w, 4),
    "split_k": lambda x, w: torch.stack(_chunks(x, w, -(-x.shape[1] // 8))).sum(0),
    "reversed_order": lambda x, w: _in_order(x.flip(1), w.flip(1), 32),
    "truncating_accumulators": _truncating,
    "as_a_tree": _tree,
    "columns_by_rows": lambda x, w: (w.float() @ x.float().T).T,
}
for _name, _product in _RIGHT.items():
    right("linear", support=DENSE)(_with(_product, _name))


@right("linear", support=DENSE)
def bias_first(x: Tensor, handle: Tensor, bias: Tensor | None = None) -> Tensor:
    """The bias is where the accumulators start."""
    start = x.new_zeros(handle.shape[0], dtype=torch.float32) if bias is None else bias.float()
    return torch.addmm(start, x.float(), handle.float().T).to(x.dtype)


@right("linear", support=DENSE)
def native(x: Tensor, handle: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x.float(), handle.float(), None if bias is None else bias.float()).to(x.dtype)


add_cheats("linear", lambda x, handle, bias=None: F.linear(x, handle, bias), support=DENSE)
