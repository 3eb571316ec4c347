"""Dense references: float32 against float64 loops, and bfloat16 bit for bit against transformers' own code."""

import math

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from core.errors import ConfigError
from core.kernels.reference import dense
from core.kernels.schemes import BLOCK, Q41Weight, Q80Weight


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def test_linear_with_and_without_bias():
    x, w, bias = normal(3, 50), normal(7, 50, seed=1), normal(7, seed=2)
    handle = dense.pack_weight(w.t().contiguous().t(), scheme="dense")
    want = torch.tensor([[math.fsum(a * b for a, b in zip(r, c, strict=True)) for c in w.tolist()] for r in x.tolist()])
    torch.testing.assert_close(dense.linear(x, handle), want, rtol=0, atol=1e-5)
    torch.testing.assert_close(dense.linear(x, handle, bias), want + bias, rtol=0, atol=1e-5)


def quantised(n, k, seed=0):
    """A random weight in q4_1."""
    draw = torch.Generator().manual_seed(seed)
    codes = torch.randint(256, (n, k // 2), generator=draw, dtype=torch.uint8)
    scale, minimum = (torch.rand(n, k // 32, generator=draw) for _ in range(2))
    return Q41Weight(codes, (scale * 0.02).half(), (minimum - 0.6).half())


def in_8_bits(n, k, seed=0):
    """A random weight in q8_0."""
    draw = torch.Generator().manual_seed(seed)
    codes = torch.randint(-128, 128, (n, k), generator=draw, dtype=torch.int8)
    return Q80Weight(codes, (torch.randn(n, k // BLOCK, generator=draw) * 0.01).half())


@pytest.mark.parametrize(("scheme", "make"), [("q4_1", quantised), ("q8_0", in_8_bits)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_quantised_weight_is_its_dequantised_one(scheme, make, dtype, with_bias, monkeypatch):
    w, x = make(70, 96), normal(3, 96, dtype=dtype)
    bias = normal(70, seed=2, dtype=dtype) if with_bias else None
    handle = dense.pack_weight(w, scheme=scheme)
    want = dense.linear(x, w.dequantised().to(dtype), bias)
    assert dense.linear(x, handle, bias).equal(want)
    monkeypatch.setattr(dense, "_PIECE_BYTES", 4 * 96 * 32)
    torch.testing.assert_close(dense.linear(x, handle, bias), want)


def test_codes_lie_where_the_form_says():
    w = quantised(5, 96)
    codes, wide = w.single_codes(), w.dequantised()
    for row, block, j in ((0, 0, 0), (4, 2, 15), (3, 1, 7)):
        byte = int(w.codes[row, 16 * block + j])
        for at, code in ((32 * block + j, byte % 16), (32 * block + j + 16, byte // 16)):
            assert codes[row, at] == code
            exact = float(w.scale[row, block]) * code + float(w.minimum[row, block])
            assert wide[row, at].item() == pytest.approx(exact, rel=1e-6)
    assert w.rows(1, 3).dequantised().equal(wide[1:3])


def test_codes_of_8_bits_have_the_scale_of_their_block():
    w = in_8_bits(5, 96)
    wide = w.dequantised()
    for row, k in ((0, 0), (4, 95), (3, 40)):
        assert wide[row, k].item() == float(w.scale[row, k // BLOCK]) * int(w.codes[row, k])
    assert w.rows(1, 3).dequantised().equal(wide[1:3])


def test_pack_weight_refuses_other_schemes_by_name():
    with pytest.raises(ConfigError, match="'q4_0'"):
        dense.pack_weight(normal(2, 2), scheme="q4_0")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("magnitude", [1e-3, 1.0, 300.0])
def test_rms_norm_is_transformers(dtype, magnitude):
    theirs = LlamaRMSNorm(48, eps=1e-5).to(dtype)
    theirs.weight.data = normal(48, dtype=dtype, seed=1)
    x = normal(5, 48, dtype=dtype) * magnitude
    x[2] = 0
    assert dense.rms_norm(x, theirs.weight.data, eps=1e-5).equal(theirs(x).detach())


def test_rms_norm_by_definition():
    x, w = normal(4, 3, 10), normal(10, seed=1)
    mean = [[math.fsum(a * a for a in row) / 10 for row in rows] for rows in x.tolist()]
    want = x.double() / torch.tensor(mean, dtype=torch.float64)[..., None].add(0.01).sqrt() * w.double()
    torch.testing.assert_close(dense.rms_norm(x, w, eps=0.01).double(), want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_add_rms_norm_norms_the_rounded_sum(dtype):
    x, residual, w = (normal(*s, dtype=dtype, seed=i) for i, s in enumerate([(5, 16), (5, 16), (16,)]))
    normed, total = dense.add_rms_norm(x, residual, w, eps=1e-6, scale_add=dense.scale_add, rms_norm=dense.rms_norm)
    assert total.equal(x + residual)
    assert normed.equal(dense.rms_norm(total, w, eps=1e-6))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rope_is_transformers(dtype):
    q, k = normal(7, 6, 16, dtype=dtype), normal(7, 2, 16, dtype=dtype, seed=1)
    angles = torch.arange(7.0)[:, None] / 10000 ** (torch.arange(8) / 8)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    ours = dense.rope(torch.cat([q, k], 1), torch.cat([cos, sin], -1))
    twice = [torch.cat([x, x], -1) for x in (cos, sin)]
    assert ours.equal(torch.cat(apply_rotary_pos_emb(q, k, *twice), 1))


def test_rope_by_definition_with_a_part_that_passes():
    x, angles = normal(3, 2, 10), normal(3, 3, seed=1)
    out = dense.rope(x, torch.cat([angles.cos(), angles.sin()], -1))
    for t in range(3):
        for h in range(2):
            for i in range(3):
                turn = complex(x[t, h, i], x[t, h, i + 3]) * complex(angles[t, i].cos(), angles[t, i].sin())
                assert abs(complex(out[t, h, i], out[t, h, i + 3]) - turn) < 1e-6
    assert out[..., 6:].equal(x[..., 6:])


@pytest.mark.parametrize("act", ["silu", "gelu", "gelu_tanh"])
def test_act_mul_by_definition(act):
    formula = {
        "silu": lambda g: g / (1 + math.exp(-g)),
        "gelu": lambda g: g * 0.5 * (1 + math.erf(g / math.sqrt(2))),
        "gelu_tanh": lambda g: 0.5 * g * (1 + math.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g**3))),
    }[act]
    x = normal(3, 12) * 3
    want = [[formula(row[i]) * row[6 + i] for i in range(6)] for row in x.tolist()]
    torch.testing.assert_close(dense.act_mul(x, act=act), torch.tensor(want), rtol=1e-5, atol=1e-6)


def test_act_mul_rounds_the_activation():
    x = normal(8, 64, dtype=torch.bfloat16)
    want = torch.nn.functional.silu(x[:, :32].float()).bfloat16() * x[:, 32:]
    assert dense.act_mul(x, act="silu").equal(want)


def test_scale_add_and_softcap_round_once():
    x, y = normal(64, dtype=torch.bfloat16), normal(64, dtype=torch.bfloat16, seed=1)
    assert dense.scale_add(x, y, scale=0.3).equal((x.float() * 0.3 + y.float()).bfloat16())
    want = torch.tensor([30 * math.tanh(v * 20 / 30) for v in x.tolist()]).bfloat16()
    torch.testing.assert_close(dense.softcap(x * 20, cap=30.0), want, rtol=2**-7, atol=0)
    assert dense.softcap(torch.tensor([float("inf"), -1e30]), cap=5.0).tolist() == [5.0, -5.0]


def test_quant_act_by_definition():
    x = normal(6, 33)
    x[1], x[2], x[3] = 0, x[2] * 1e-30, torch.arange(33.0) - 16
    codes, scale = dense.quant_act(x)
    assert (codes.dtype, scale.dtype) == (torch.int8, torch.float32)
    for row, code, s in zip(x.tolist(), codes.tolist(), scale.tolist(), strict=True):
        top = max(map(abs, row))
        assert s == pytest.approx(top / 127, rel=1e-6)
        for value, c in zip(row, code, strict=True):
            exact = value / top * 127 if top else 0
            assert abs(c - exact) <= 0.5 + 1e-4
    assert codes.abs().amax(-1).tolist() == [127, 0, 127, 127, 127, 127]
