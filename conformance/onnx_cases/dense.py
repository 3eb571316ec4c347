"""Cases of products, norms, rope and activations."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from conformance.onnx_cases.load import OnnxCase
from conformance.onnx_cases.stand import Adapter, Outputs, Stand, only
from core.kernels.dtypes import DTYPE_NAMES
from core.plugin.facts import Need

_NORM_EPS = 1e-5
"""Source: onnx's schema of RMSNormalization, default of `epsilon`."""


def _multiply(stand: Stand, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [T, K] times w [N, K], transposed, plus bias [N]."""
    handle = stand.bind("pack_weight", scheme="dense")(stand.put("w", w))
    put_bias = None if bias is None else stand.put("bias", bias)
    return stand.get(stand.bind("linear")(stand.put("x", x), handle, put_bias))


def _product_need(case: OnnxCase) -> Iterator[Need]:
    x, w = list(case.inputs.values())[:2]
    k, n = (w.shape[0], 1) if w.dim() == 1 else w.shape[-2:]
    if case.attributes.get("transB"):
        k, n = n, k
    yield Need(dtype=DTYPE_NAMES[x.dtype], n=n, k=k, scheme="dense")


def _matmul(case: OnnxCase, stand: Stand) -> Outputs:
    """A product for every matrix of the second operand, which is transposed to be the weight."""
    a, b = case.inputs.values()
    rows = a[None] if a.dim() == 1 else a
    columns = b[:, None] if b.dim() == 1 else b
    batch = np.broadcast_shapes(rows.shape[:-2], columns.shape[:-2])
    xs, ws = (x.expand(*batch, *x.shape[-2:]).flatten(0, -3) if batch else x[None] for x in (rows, columns))
    y = torch.stack([_multiply(stand, x, w.T) for x, w in zip(xs, ws, strict=True)])
    return only(case, y.view(next(iter(case.outputs.values())).shape))


def _operands(case: OnnxCase) -> tuple[torch.Tensor, torch.Tensor]:
    """x [T, K] and w [N, K] of a Gemm."""
    a, b = list(case.inputs.values())[:2]
    return a.T if case.attributes.get("transA") else a, b if case.attributes.get("transB") else b.T


def _gemm(case: OnnxCase, stand: Stand) -> Outputs:
    """The third operand is the bias. A row at a time where each has its own; one number stands for all columns."""
    x, w = _operands(case)
    c = case.inputs.get("c")
    if c is None:
        return only(case, _multiply(stand, x, w))
    biases = c.expand(len(x), len(w))
    if c.dim() < 2 or len(c) == 1:
        return only(case, _multiply(stand, x, w, biases[0]))
    return only(case, torch.cat([_multiply(stand, x[i : i + 1], w, biases[i]) for i in range(len(x))]))


def _gemm_scaled(case: OnnxCase, stand: Stand) -> Outputs:
    """alpha * (x w) + (beta * c + 0): the sums and factors are scale_add's."""
    x, w = _operands(case)
    y = _multiply(stand, x, w)
    c = case.inputs["c"].expand_as(y)
    beta, alpha = (case.attributes.get(name, 1.0) for name in ("beta", "alpha"))
    scale_c, scale_y = (stand.bind("scale_add", scale=scale) for scale in (beta, alpha))
    scaled_c = stand.get(scale_c(stand.put("c", c), stand.put("zeros", torch.zeros_like(y))))
    return only(case, stand.get(scale_y(stand.put("y", y), stand.put("scaled_c", scaled_c))))


def _norm_need(case: OnnxCase) -> Iterator[Need]:
    yield Need(dtype=DTYPE_NAMES[case.inputs["X"].dtype], k=case.inputs["W"].numel())


def _rms_norm(case: OnnxCase, stand: Stand) -> Outputs:
    """The axes that are normed together are one."""
    x, w = case.inputs["X"], case.inputs["W"]
    kernel = stand.bind("rms_norm", eps=case.attributes.get("epsilon", _NORM_EPS))
    y = stand.get(kernel(stand.put("x", x.reshape(-1, w.numel())), stand.put("w", w.flatten())))
    return only(case, y.view(x.shape))


def _rope(case: OnnxCase, stand: Stand) -> Outputs:
    """Tokens of all sequences after each other. Interleaved pairs are moved to where the row has them, and back."""
    x = case.inputs["input"]
    tokens = x.transpose(1, 2) if x.dim() == 4 else x.view(*x.shape[:2], case.attributes["num_heads"], -1)
    shape, tokens = tokens.shape, tokens.flatten(0, 1)
    positions = case.inputs.get("position_ids")
    caches = (case.inputs["cos_cache"], case.inputs["sin_cache"])
    cos_sin = torch.cat([c.flatten(0, 1) if positions is None else c[positions.flatten()] for c in caches], -1)
    order = torch.arange(shape[-1])
    if case.attributes.get("interleaved"):
        size = cos_sin.shape[-1]
        order = torch.cat((order[0:size:2], order[1:size:2], order[size:]))
    kernel = stand.bind("rope")
    turned = stand.get(kernel(stand.put("x", tokens[..., order], may_change=True), stand.put("cos_sin", cos_sin)))
    y = torch.empty_like(turned)
    y[..., order] = turned
    y = y.view(shape)
    return only(case, y.transpose(1, 2) if x.dim() == 4 else y.flatten(2))


def _activate(stand: Stand, gate: torch.Tensor, up: torch.Tensor, act: str) -> torch.Tensor:
    """act(gate) * up, both [T, K]."""
    return stand.get(stand.bind("act_mul", act=act)(stand.put("x", torch.cat((gate, up), -1))))


def _swiglu(case: OnnxCase, stand: Stand) -> Outputs:
    return only(case, _activate(stand, case.inputs["a"], case.inputs["b"], "silu"))


def _activation(act: str, case: OnnxCase, stand: Stand) -> Outputs:
    """Alone: times ones."""
    (x,) = case.inputs.values()
    rows = x.reshape(-1, x.shape[-1])
    return only(case, _activate(stand, rows, torch.ones_like(rows), act).view(x.shape))


def _swish(case: OnnxCase, stand: Stand) -> Outputs:
    return _activation("silu", case, stand)


def _gelu(case: OnnxCase, stand: Stand) -> Outputs:
    return _activation("gelu_tanh" if case.attributes.get("approximate") == "tanh" else "gelu", case, stand)


MATMUL = Adapter("linear", "a product per matrix of the second operand", _matmul, _product_need)
GEMM = Adapter("linear", "with bias", _gemm, _product_need)
GEMM_SCALED = Adapter("linear", "then scale_add for alpha and beta", _gemm_scaled, _product_need)
RMS_NORM = Adapter("rms_norm", "axes normed together are one", _rms_norm, _norm_need)
ROPE = Adapter("rope", "interleaved pairs are moved to halves", _rope)
SWIGLU = Adapter("act_mul", "gate beside up", _swiglu)
SWISH = Adapter("act_mul", "times ones", _swish)
GELU = Adapter("act_mul", "times ones", _gelu)
