"""Products with packed weights against float64, within what bfloat16 scales, weights and results may cost.

Needs a processor on which torch's order of codes is known: x86 with AVX2 or AVX-512, and torch 2.6 or later.
"""

import pytest
import torch

from core.kernels.schemes import BLOCK, Q41Weight
from core.plugin import Need
from devices.cpu import kernels, packed
from devices.cpu.device import CpuDevice

ROUNDOFF = 2.0**-8
FEW, MANY = packed.MANY_ROWS - 1, packed.MANY_ROWS


@pytest.fixture(scope="module")
def block_rows():
    found = packed.find_block_rows()
    assert found in (32, 64)
    return found


def quantised(n, k, seed=0):
    """A weight in q4_1 whose blocks differ in size and offset, as trained ones do."""
    draw = torch.Generator().manual_seed(seed)
    codes = torch.randint(256, (n, k // 2), generator=draw, dtype=torch.uint8)
    scale = torch.rand(n, k // BLOCK, generator=draw) * 0.02 + 0.001
    minimum = -scale * (5 + 5 * torch.rand(n, k // BLOCK, generator=draw))
    return Q41Weight(codes, scale.half(), minimum.half())


def bound(x, w):
    """What may be lost: scale and zero rounded, the weight rounded again, all of it weighed by x; [T, N] float64."""
    scale, minimum = (part.double()[..., None] for part in w[1:])
    codes = w.single_codes().view(*scale.shape[:2], BLOCK).double()
    terms = (scale * (codes - 8)).abs() + (minimum + 8 * scale).abs() + (scale * codes + minimum).abs()
    return ROUNDOFF * x.double().abs() @ terms.view(len(w.codes), -1).T


@pytest.mark.parametrize("rows", [0, 1, 8, FEW, MANY, 300])
@pytest.mark.parametrize(("n", "k"), [(192, 96), (70, 64), (8, 32)], ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear(rows, n, k, with_bias, block_rows):
    w = quantised(n, k)
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(rows, k, generator=draw).bfloat16()
    bias = torch.randn(n, generator=draw).bfloat16() if with_bias else None
    product = x.double() @ w.dequantised().double().T
    want = product if bias is None else product + bias.double()
    got = packed.linear(x, packed.pack_weight(w, scheme="q4_1", block_rows=block_rows), bias)
    assert got.dtype == torch.bfloat16
    assert got.shape == (rows, n)
    assert got.is_contiguous()
    stored = ROUNDOFF * (want.abs() if bias is None else product.abs() + want.abs())
    assert ((got.double() - want).abs() <= bound(x, w) + stored + 1e-6).all()


@pytest.mark.parametrize("rows", [4, MANY])
def test_the_error_is_that_of_a_dense_weight_in_bfloat16(rows, block_rows):
    """Not much more: no bias in one direction, no scale that is lost."""
    w = quantised(512, 1024)
    x = torch.randn(rows, 1024, generator=torch.Generator().manual_seed(1)).bfloat16()
    want = x.double() @ w.dequantised().double().T
    dense = torch.nn.functional.linear(x, w.dequantised().bfloat16())
    ours = packed.linear(x, packed.pack_weight(w, scheme="q4_1", block_rows=block_rows))
    error, usual = (((y.double() - want).norm() / want.norm()).item() for y in (ours, dense))
    assert error <= 1.3 * usual
    assert usual <= 0.003


def test_a_weight_is_packed_in_pieces(block_rows, monkeypatch):
    w = quantised(block_rows * 5 + 3, 64)
    whole = packed.pack_weight(w, scheme="q4_1", block_rows=block_rows)
    x = torch.randn(MANY, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    product = packed.linear(x, whole)
    monkeypatch.setattr(packed, "_PIECE", 2 * 64 * block_rows)
    pieces = packed.pack_weight(w, scheme="q4_1", block_rows=block_rows)
    assert pieces.codes.equal(whole.codes)
    assert pieces.scale_zero.equal(whole.scale_zero)
    torch.testing.assert_close(packed.linear(x, pieces), product, rtol=2**-7, atol=1e-3)


def test_x_may_be_a_part_of_a_wider_tensor(block_rows):
    w = packed.pack_weight(quantised(64, 64), scheme="q4_1", block_rows=block_rows)
    wide = torch.randn(5, 128, generator=torch.Generator().manual_seed(1)).bfloat16()
    assert packed.linear(wide[:, 64:], w).equal(packed.linear(wide[:, 64:].contiguous(), w))


def takes(need):
    """Whether the cpu device has a kernel for it that is made of torch's operators."""
    facts = CpuDevice().probe()
    own = [i for i in kernels.implementations(facts) if i.row == "linear" and i.provider != "cpu-native"]
    return any(i.support.refuses(need) is None for i in own)


def test_what_is_supported():
    assert takes(Need(scheme="q4_1", dtype="bfloat16"))
    assert not takes(Need(scheme="q4_1", dtype="float32"))
    assert not takes(Need(scheme="q4_1", dtype="bfloat16", batch_invariant=True))
    assert takes(Need(scheme="dense", dtype="float32", batch_invariant=True))


def test_an_order_of_codes_that_is_not_known_is_refused(monkeypatch):
    pack = packed._pack_codes
    monkeypatch.setattr(packed, "_pack_codes", lambda codes: pack(codes.flip(0)))
    assert packed.find_block_rows() is None
    assert not takes(Need(scheme="q4_1", dtype="bfloat16"))
    assert takes(Need(scheme="dense", dtype="bfloat16"))
