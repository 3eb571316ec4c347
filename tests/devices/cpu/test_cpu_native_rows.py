"""Norms, rope and activations by each variant of the compiled kernels against float64, rounded once."""

import pytest
import torch
import torch.nn.functional as F

from devices.cpu.native import library
from devices.cpu.native.rows import RowKernels

ROUNDOFF = 2.0**-8  # of bfloat16

SIZES = [(1, 1), (1, 16), (5, 17), (3, 576), (70, 600)]
"""Tokens and columns: of part of a register and of many, for one thread and for all."""


@pytest.fixture(params=library.variants())
def kernels(request: pytest.FixtureRequest) -> RowKernels:
    return RowKernels(request.param)


def random(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def close(y: torch.Tensor, want: torch.Tensor, terms: torch.Tensor | None = None) -> bool:
    """Within one rounding, and what float32 costs of the terms that a result is the sum of."""
    assert y.dtype == torch.bfloat16
    assert y.shape == want.shape
    few = 1e-6 * (want if terms is None else terms).abs()
    return bool(((y.double() - want).abs() <= ROUNDOFF * want.abs() + few + 1e-38).all())


def normed(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    x = x.double()
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * w.double()


@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_norms(rows: int, columns: int, kernels: RowKernels) -> None:
    x, residual, w = random(rows, columns), random(rows, columns, seed=2), random(columns, seed=3)
    assert close(kernels.rms_norm(x, w, eps=1e-5), normed(x, w, 1e-5))
    total = (x.float() + residual.float()).bfloat16()
    y, added = kernels.add_rms_norm(x, residual, w, eps=0.1)
    assert added.equal(total)
    assert close(y, normed(total, w, 0.1))


def test_a_norm_of_heads_that_lie_apart(kernels: RowKernels) -> None:
    wide, w = random(7, 5, 48), random(32, seed=2)
    part = wide[:, 1:4, 8:40]
    assert close(kernels.rms_norm(part, w, eps=1e-6), normed(part, w, 1e-6))


def test_views(kernels: RowKernels) -> None:
    wide, w = random(9, 100), random(40, seed=2)
    part, other = wide[:, 10:50], wide.T.contiguous().T[:, 10:50]
    assert kernels.rms_norm(part, w, eps=1e-5).equal(kernels.rms_norm(part.contiguous(), w, eps=1e-5))
    for x in (part, other):
        y, total = kernels.add_rms_norm(x, x.clone(), w, eps=1e-5)
        assert total.equal(2 * part)
        assert y.equal(kernels.rms_norm(2 * part.contiguous(), w, eps=1e-5))
        assert kernels.act_mul(x, act="silu").equal(kernels.act_mul(part.contiguous(), act="silu"))


@pytest.mark.parametrize(("tokens", "heads", "size", "turned"), [(1, 1, 16, 16), (7, 3, 64, 64), (90, 12, 80, 40)])
def test_rope(tokens: int, heads: int, size: int, turned: int, kernels: RowKernels) -> None:
    """In place, also within a wider tensor; what is not turned stays."""
    qkv = random(tokens, heads + 2, size)
    before, x = qkv.clone(), qkv[:, 1:-1]
    cos_sin = random(tokens, turned, seed=2)
    cos, sin = (part[:, None].double() for part in cos_sin.chunk(2, -1))
    a, b = (part.double() for part in before[:, 1:-1, :turned].chunk(2, -1))
    want = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    terms = torch.cat([(a * cos).abs() + (b * sin).abs(), (b * cos).abs() + (a * sin).abs()], -1)
    y = kernels.rope(x, cos_sin)
    assert y.data_ptr() == x.data_ptr()
    assert close(y[..., :turned], want, terms)
    assert y[..., turned:].equal(before[:, 1:-1, turned:])
    assert qkv[:, 0].equal(before[:, 0])
    assert qkv[:, -1].equal(before[:, -1])


@pytest.mark.parametrize(("rows", "columns"), SIZES)
@pytest.mark.parametrize("act", ["silu", "gelu_tanh"])
def test_activations(act: str, rows: int, columns: int, kernels: RowKernels) -> None:
    x = random(rows, 2 * columns) * 4
    gate, up = x.double().chunk(2, -1)
    want = (F.silu(gate) if act == "silu" else F.gelu(gate, approximate="tanh")) * up
    assert close(kernels.act_mul(x, act=act), want, gate * up)


@pytest.mark.parametrize("act", ["silu", "gelu", "gelu_tanh"])
def test_activations_of_any_size_of_number(act: str, kernels: RowKernels) -> None:
    gate = torch.cat(
        [2.0 ** torch.arange(-130, 127), -(2.0 ** torch.arange(-130, 127)), torch.linspace(-100, 100, 333)]
    )
    x = torch.cat([gate, torch.ones_like(gate)]).bfloat16()[None]
    wide = x[:, : len(gate)].double()
    want = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda g: F.gelu(g, approximate="tanh")}[act](wide)
    y = kernels.act_mul(x, act=act)
    assert ((y.double() - want).abs() <= 2 * ROUNDOFF * want.abs() + 2e-6 * wide.abs()).all()
    nan = kernels.act_mul(torch.full((1, 2), float("nan")).bfloat16(), act=act)
    assert nan.isnan().all()
