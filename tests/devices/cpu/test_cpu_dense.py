"""Native dense kernels of the CPU against the references in float64, within the roundings that the table allows."""

import pytest
import torch

from core.kernels import operators
from core.kernels.reference import dense as reference
from core.kernels.reference import gather
from devices.cpu import dense

# Unit roundoffs of what is stored.
ROUNDOFF = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
DTYPES = list(ROUNDOFF)
# float32 arithmetic on the way, relative to the terms.
WIDE = 1e-6


def normal(*shape, dtype, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def within(got, want, terms, dtype, roundings):
    """`roundings` storage roundings of the result, and float32 arithmetic on `terms`, the sum of magnitudes."""
    assert got.dtype == dtype
    smallest = torch.finfo(dtype).smallest_normal
    assert ((got.double() - want).abs() <= roundings * ROUNDOFF[dtype] * want.abs() + WIDE * terms + smallest).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("bias", [False, True])
def test_linear(dtype, rows, bias):
    x, w = normal(rows, 130, dtype=dtype), normal(70, 130, dtype=dtype, seed=1)
    b = normal(70, dtype=dtype, seed=2) if bias else None
    wide = [t if t is None else t.double() for t in (x, w, b)]
    terms = reference.linear(*(t if t is None else t.abs() for t in wide))
    within(operators.linear(x, w, b), reference.linear(*wide), terms, dtype, 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("magnitude", [1e-3, 1.0, 300.0])
def test_rms_norm_rounds_once(dtype, magnitude):
    x, w = normal(7, 3, 90, dtype=dtype) * magnitude, normal(90, dtype=dtype, seed=1)
    x[2] = 0
    want = reference.rms_norm(x.double(), w.double(), eps=1e-5)
    within(operators.rms_norm(x, w, eps=1e-5), want, want.abs(), dtype, 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm(dtype):
    x, residual, w = (normal(*s, dtype=dtype, seed=i) for i, s in enumerate([(5, 90), (5, 90), (90,)]))
    total = x + residual
    want = reference.rms_norm(total.double(), w.double(), eps=1e-5)
    normed, summed = operators.add_rms_norm(x, residual, w, eps=1e-5)
    assert summed.equal(total)
    within(normed, want, want.abs(), dtype, 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rotated", [16, 8])
def test_rope(dtype, rotated):
    # As in a model: a part of a wider tensor.
    x = normal(9, 8, 16, dtype=dtype)[:, :5]
    angles = normal(9, rotated // 2, dtype=torch.float64, seed=1)
    cos_sin = torch.cat([angles.cos(), angles.sin()], -1).to(dtype)
    want = reference.rope(x.double(), cos_sin.double())
    x1, x2 = x[..., :rotated].double().abs().chunk(2, -1)
    cos, sin = cos_sin[:, None].double().abs().chunk(2, -1)
    terms = torch.zeros_like(want)
    terms[..., :rotated] = torch.cat([x1 * cos + x2 * sin, x2 * cos + x1 * sin], -1)
    # A product may be rounded, and the sum.
    got = dense.rope(x, cos_sin)
    assert got.dtype == dtype
    assert ((got.double() - want).abs() <= ROUNDOFF[dtype] * (want.abs() + terms) + WIDE * terms).all()
    assert got[..., rotated:].equal(x[..., rotated:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("act", ["silu", "gelu", "gelu_tanh"])
def test_act_mul(dtype, act):
    x = normal(9, 40, dtype=dtype) * 2
    want = reference.act_mul(x.double(), act=act)
    # act(x) is rounded, and the product; cancellation inside of gelu weighs with the size of x.
    within(dense.act_mul(x, act=act), want, (x[:, :20] * x[:, 20:]).double().abs() * 4, dtype, 2)


@pytest.mark.parametrize("first", [0, 10])
def test_embed_equals_the_reference(first):
    table = torch.randn(6, 8).bfloat16()
    for case in ([first, first + 5, first + 2], [first - 1, first + 6, 0, 2**31 - 1, first + 1]):
        ids = torch.tensor(case, dtype=torch.int32)
        assert dense.embed(ids, table, first=first).equal(gather.embed(ids, table, first=first))
