"""Torch in terms of jax, by torchax: the environment in which core's torch code is traced, and tensors between both.

Some operators that references use are missing in torchax, take fewer arguments there, round more often, or lose what is
written to a view: they are defined here, in an environment of our own. Keys of draws are integers of 64 bits, which jax
has when asked to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch
from torchax.ops.mappings import j2t_dtype, t2j_dtype
from torchax.ops.op_base import InplaceOp
from torchax.tensor import Environment, Tensor
from torchax.view import View, ViewInfo, ViewInfoType

jax.config.update("jax_enable_x64", True)

_DTYPES = (
    torch.float64, torch.float32, torch.bfloat16, torch.float16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
_PROMOTED = {(a, b): torch.promote_types(a, b) for a in _DTYPES for b in _DTYPES}


def _searchsorted(edges: Tensor, values: Tensor, *, right: bool = False) -> Tensor:
    found = jnp.searchsorted(array(edges), array(values), side="right" if right else "left")
    return tensor(found.astype(jnp.int64))


class _Shaped(ViewInfo):  # type: ignore[misc]  # jax and torchax are seen as Any
    """A view of the same elements in another shape, of which one size may be -1."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(ViewInfoType.RESHAPE)
        self._shape = shape

    def transform_tensor(self, jax_array: jax.Array) -> jax.Array:
        return jax_array.reshape(self._shape)

    def update_tensor(self, new_value: jax.Array, jax_array: jax.Array) -> jax.Array:
        return new_value.reshape(jax_array.shape)

    def calculate_output_shape(self, source: jax.Array) -> list[int]:
        rest = math.prod(source.shape) // max(1, math.prod(size for size in self._shape if size >= 0))
        return [rest if size < 0 else size for size in self._shape]


def _view(x: Tensor | View, shape: tuple[int, ...]) -> View:
    return View(x, _Shaped(tuple(shape)), ENVIRONMENT)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Rounded once, after the bias is added."""
    wide = jnp.promote_types(array(x).dtype, jnp.float32)
    y = jnp.einsum("...k,nk->...n", array(x), array(weight), preferred_element_type=wide)
    if bias is not None:
        y = y + array(bias).astype(wide)
    return tensor(y.astype(array(x).dtype))


def _silu(x: Tensor, inplace: bool = False) -> Tensor:
    return _rounded_once(jax.nn.silu, x)


def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    return _rounded_once(partial(jax.nn.gelu, approximate=approximate == "tanh"), x)


def _rounded_once(function: Callable[[jax.Array], jax.Array], x: Tensor) -> Tensor:
    """`function`, computed in float32 or wider."""
    wide = array(x).astype(jnp.promote_types(array(x).dtype, jnp.float32))
    return tensor(function(wide).astype(array(x).dtype))


def _view_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor(jax.lax.bitcast_convert_type(array(x), t2j_dtype(dtype)))


def _made() -> Environment:
    env = Environment()
    env.config.internal_respect_torch_return_dtypes = True
    getitem = env._ops[torch.Tensor.__getitem__].func

    def by_tensors(x: Any, indexes: Any) -> Any:
        """A view is a place in another tensor; picking entries of it takes its content."""
        parts = indexes if isinstance(indexes, tuple) else (indexes,)
        picks = any(isinstance(part, torch.Tensor) for part in parts)
        return getitem(x.torch() if picks and isinstance(x, View) else x, indexes)

    env.override_op_definition(torch.promote_types, lambda a, b: _PROMOTED[a, b])
    env.override_op_definition(torch.nn.functional.linear, _linear)
    env.override_op_definition(torch.nn.functional.silu, _silu)
    env.override_op_definition(torch.nn.functional.gelu, _gelu)
    env.override_op_definition(torch.searchsorted, _searchsorted)
    env.override_op_definition(torch.ops.aten.view, _view, is_view_op=True)
    env.override_op_definition(torch.ops.aten.view.dtype, _view_dtype)
    env.override_op_definition(torch.ops.aten.index_copy_, InplaceOp(torch.ops.aten.index_copy), is_view_op=True)
    env.override_op_definition(torch.Tensor.__getitem__, by_tensors, is_view_op=True)
    return env


ENVIRONMENT = _made()


@contextmanager
def tracing() -> Iterator[None]:
    """Torch code that runs inside is done by jax.

    Not in torch's inference mode: there, operators composed of others would not be taken apart.
    """
    with torch.inference_mode(False), torch.no_grad(), ENVIRONMENT:
        yield


def tensor(x: jax.Array) -> Tensor:
    """A tensor for torch code that is traced. Make it inside of `tracing` where it is to be written to."""
    return Tensor(x, ENVIRONMENT)


def is_array(x: torch.Tensor) -> bool:
    """Whether a tensor is one of jax's."""
    return isinstance(x, Tensor | View)


def array(x: Any) -> jax.Array:
    """What is in a tensor of jax's."""
    found: jax.Array = x.jax()
    return found


def numbers(x: torch.Tensor) -> np.ndarray[Any, Any]:
    """A copy of a host tensor as numpy has it."""
    x = x.detach().contiguous()
    if x.dtype == torch.bfloat16:
        copied: np.ndarray[Any, Any] = x.view(torch.int16).numpy().view(ml_dtypes.bfloat16).copy()
        return copied
    return x.numpy().copy()


def write(target: torch.Tensor, source: jax.Array) -> None:
    """Copy what is in `source` to a host tensor of its shape and dtype. Waits until it is there."""
    found = np.asarray(source)
    if target.dtype == torch.bfloat16:
        target.view(torch.int16).numpy()[...] = found.view(np.int16)
    else:
        target.numpy()[...] = found


def as_bits(x: jax.Array) -> jax.Array:
    """bfloat16 as integers, which no processor widens on the way."""
    return jax.lax.bitcast_convert_type(x, jnp.int16) if x.dtype == jnp.bfloat16 else x


def from_bits(x: jax.Array) -> jax.Array:
    """The inverse of `as_bits`."""
    return jax.lax.bitcast_convert_type(x, jnp.bfloat16) if x.dtype == jnp.int16 else x


def on_host(source: jax.Array) -> torch.Tensor:
    """A host tensor with what is in `source`."""
    target = torch.empty(source.shape, dtype=j2t_dtype(source.dtype))
    write(target, source)
    return target
