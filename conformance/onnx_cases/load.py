"""Loads the node cases of the installed `onnx` package: inputs and expected results as tensors.

The package generates its cases when asked, all 1,900 of them; those of OPERATORS are kept. A case that the package has
a second time, expanded into primitive operators, is taken once.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from core.errors import ConfigError

OPERATORS = (
    "Attention",
    "FlexAttention",
    "RotaryEmbedding",
    "RMSNormalization",
    "LayerNormalization",
    "MatMul",
    "Gemm",
    "SwiGLU",
    "Swish",
    "Gelu",
    "TensorScatter",
    "Gather",
    "GatherElements",
    "GatherND",
    "Scatter",
    "ScatterElements",
    "ScatterND",
    "Softmax",
    "LogSoftmax",
    "TopK",
    "ArgMax",
    "CumSum",
    "QuantizeLinear",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "MatMulInteger",
    "QLinearMatMul",
    "LinearAttention",
    "CausalConvWithState",
)

_RTOL = {torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9}
"""At least; two units in the last place. Source: onnx/backend/test/runner/__init__.py, assert_similar_outputs, for
bfloat16. Its 1e-3 is one unit of float16, in which expected results were computed, step by step: those of
attention_4d_fp16 are 0.97 of that from the true value, where nothing is left for a kernel's own rounding.
"""

# Numbers that numpy has no dtype of its own for, by the name that ml_dtypes gives them.
_SAME_BITS = {
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
}
_WIDER = {"int2": np.int8, "int4": np.int8, "uint2": np.uint8, "uint4": np.uint8, "float4_e2m1fn": np.float32}


@dataclass(frozen=True)
class OnnxCase:
    """One node with inputs and what it must give.

    name        without "test_"
    attributes  those that the node states
    inputs      by the names that the node gives them; optional ones that are left out are not there
    outputs     likewise, in order
    rtol, atol  as the package states them; see `rtol_of`
    """

    name: str
    operator: str
    attributes: Mapping[str, Any]
    inputs: Mapping[str, torch.Tensor]
    outputs: Mapping[str, torch.Tensor]
    rtol: float
    atol: float

    def rtol_of(self, dtype: torch.dtype) -> float:
        """An error of a result in this dtype may be atol + this * |expected|."""
        return max(self.rtol, _RTOL.get(dtype, 0.0))


@cache
def load() -> dict[str, OnnxCase]:
    """Name -> case. Raises: ConfigError when the package is not there."""
    try:
        from onnx.backend.test.loader import load_node_model_tests
    except ImportError as error:
        raise ConfigError(f"the ONNX cases need the package onnx ({error}): install the extra `conformance`") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, about overflow that cases of other operators provoke on purpose
        found: list[Any] = load_node_model_tests()
    cases: dict[str, OnnxCase] = {}
    for one in found:
        nodes = one.model.graph.node
        if len(nodes) == 1 and nodes[0].op_type in OPERATORS and "_expanded" not in one.name:
            case = _read(one)
            cases[case.name] = case
    return cases


def _read(one: Any) -> OnnxCase:
    from onnx.helper import get_attribute_value

    node = one.model.graph.node[0]
    attributes = {a.name: get_attribute_value(a) for a in node.attribute}
    ((inputs, outputs),) = one.data_sets
    return OnnxCase(
        one.name.removeprefix("test_"),
        node.op_type,
        {name: value.decode() if isinstance(value, bytes) else value for name, value in attributes.items()},
        _named(node.input, inputs),
        _named(node.output, outputs),
        one.rtol,
        one.atol,
    )


def _named(names: Sequence[str], values: Sequence[Any]) -> dict[str, torch.Tensor]:
    return {name: to_tensor(x) for name, x in zip((n for n in names if n), values, strict=True)}


def to_tensor(x: Any) -> torch.Tensor:
    """A numpy array or a TensorProto. Integers of less than 8 bits come as int8 or uint8, float4 as float32."""
    from onnx import TensorProto, numpy_helper

    array = np.array(numpy_helper.to_array(x) if isinstance(x, TensorProto) else x, order="C")
    name = array.dtype.name
    if name in _SAME_BITS:
        return torch.from_numpy(array.view(f"u{array.dtype.itemsize}").view(f"i{array.dtype.itemsize}")).view(
            _SAME_BITS[name]
        )
    return torch.from_numpy(array.astype(_WIDER[name]) if name in _WIDER else array)
