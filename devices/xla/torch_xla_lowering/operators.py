"""Torch in terms of torch_xla, as core's references mean it.

Some operators round more often there than the references do, or are missing: they are composed of others here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch_xla.core import xla_op_registry
from torch_xla.core.xla_builder import Type
from torch_xla.core.xla_model import optimization_barrier_

_reinterpret = xla_op_registry.register("reinterpret", lambda x, to_type: x.bitcast(to_type))
_TYPES = {
    torch.float32: Type.F32, torch.bfloat16: Type.BF16, torch.float16: Type.F16,
    torch.int32: Type.S32, torch.int16: Type.S16,
}  # fmt: skip


def _view(x: torch.Tensor, *shape: Any) -> torch.Tensor:
    """In another shape, or the same bits as another dtype of the same width."""
    if isinstance(shape[0], torch.dtype):
        found: torch.Tensor = _reinterpret(x, to_type=_TYPES[shape[0]])
        return found
    return x.view(*shape)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Rounded once, after the bias is added. The weight comes first: with few rows, XLA is faster so on processors."""
    wide = torch.promote_types(x.dtype, torch.float32)
    product = weight.to(wide) @ x.to(wide).mT
    optimization_barrier_([product])  # else XLA turns it around again
    y = product.mT
    return (y if bias is None else y + bias.to(wide)).to(x.dtype)


def _max(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """NaN where one is NaN, and -inf of nothing else; XLA leaves out NaN, and begins with the lowest finite number."""
    top, place = x.max(dim)
    top = torch.where((x > float("-inf")).any(dim), top, float("-inf"))
    return torch.where(x.isnan().any(dim), float("nan"), top), place


def _shifted_right(x: torch.Tensor, by: torch.Tensor | int) -> torch.Tensor:
    """Rounded down; torch_xla's rounds to 0, and takes no two dtypes."""
    x = x.to(torch.result_type(x, by))
    by = by.to(x.dtype) if isinstance(by, torch.Tensor) else by
    return torch.where(x < 0, ~(~x >> by), x >> by)


def _searchsorted(edges: torch.Tensor, values: torch.Tensor, *, right: bool = False) -> torch.Tensor:
    """How many edges [E] lie before each value."""
    before = edges <= values[..., None] if right else edges < values[..., None]
    return before.sum(-1)


def _logaddexp(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The log of the sum of two exponentials, either of which may be 0."""
    most = torch.maximum(a, b)
    return torch.where(most.isinf(), most, most + torch.log1p(torch.exp(-(a - b).abs())))


def _rounded_once(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`function`, computed in float32 or wider."""

    def rounded(x: torch.Tensor, *args: Any, **more: Any) -> torch.Tensor:
        return function(x.to(torch.promote_types(x.dtype, torch.float32)), *args, **more).to(x.dtype)

    return rounded


_OURS: dict[Callable[..., Any], Callable[..., Any]] = {
    F.linear: _linear,
    F.silu: _rounded_once(F.silu),
    F.gelu: _rounded_once(F.gelu),
    torch.logaddexp: _logaddexp,
    torch.searchsorted: _searchsorted,
    torch.Tensor.__rshift__: _shifted_right,
    torch.Tensor.max: _max,
    torch.Tensor.view: _view,
}


class _Ours(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _OURS.get(func, func)(*args, **(kwargs or {}))


@contextmanager
def tracing() -> Iterator[None]:
    """Torch code that runs inside is recorded, not done.

    Not in torch's inference mode: there, operators composed of others would not be taken apart.
    """
    with torch.inference_mode(False), torch.no_grad(), _Ours():
        yield
