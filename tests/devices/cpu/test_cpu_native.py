"""Products by each variant of the compiled kernels against float64, and that a token's bits are its own."""

from collections.abc import Iterator

import pytest
import torch

from core.errors import DeviceError
from core.kernels.schemes import BLOCK, Q41Weight, Q80Weight, Quantised
from devices.cpu.native import library
from devices.cpu.native.linear import LinearKernels, linear

ROUNDOFF = 2.0**-8  # of bfloat16
SUMS = 2.0**-19  # of sums in float32, relative to the magnitudes of their terms: 32 roundings

VARIANTS = library.variants()
SCHEMES = ("dense", "q4_1", "q8_0")

SHAPES = [
    (1, 64, 64),
    (1, 1, 1),
    (5, 3, 2),
    (7, 33, 576),
    (70, 17, 31),
    (64, 130, 1025),
    (13, 129, 4100),
    (2, 200, 14336),
    (18, 80, 31),
    (71, 100, 5000),
]
"""T, N and K: of one strip and many, with odd K, of several chunks of tokens, and of weights cut along K."""


def test_this_processor_runs_what_the_tests_are_for() -> None:
    assert VARIANTS[-1] == library.PORTABLE
    assert len(set(VARIANTS)) == len(VARIANTS)


def weight(scheme: str, n: int, k: int, draw: torch.Generator) -> torch.Tensor | Quantised:
    if scheme == "dense":
        return torch.randn(n, k, generator=draw).bfloat16()
    if scheme == "q8_0":
        codes = torch.randint(-128, 128, (n, k), generator=draw, dtype=torch.int8)
        return Q80Weight(codes, (torch.randn(n, k // BLOCK, generator=draw) * 0.01).half())
    codes = torch.randint(256, (n, k // 2), generator=draw, dtype=torch.uint8)
    scale = torch.rand(n, k // BLOCK, generator=draw) * 0.1
    return Q41Weight(codes, scale.half(), torch.randn(n, k // BLOCK, generator=draw).half())


def wide(w: torch.Tensor | Quantised) -> torch.Tensor:
    return (w if isinstance(w, torch.Tensor) else w.dequantised()).double()


def magnitude(w: torch.Tensor | Quantised) -> torch.Tensor:
    """Of the terms that are summed: of q4_1, code and minimum apart."""
    if not isinstance(w, Q41Weight):
        return wide(w).abs()
    codes = w.single_codes().double().view(len(w.codes), -1, BLOCK)
    terms = codes * w.scale.double()[..., None] + w.minimum.double().abs()[..., None]
    return terms.view(len(codes), -1)


def fit(scheme: str, k: int) -> int:
    return k if scheme == "dense" else -(-k // BLOCK) * BLOCK


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_products(variant: str, scheme: str, shape: tuple[int, int, int], with_bias: bool) -> None:
    draw = torch.Generator().manual_seed(1)
    rows, n, k = shape[0], shape[1], fit(scheme, shape[2])
    w, x = weight(scheme, n, k, draw), torch.randn(rows, k, generator=draw).bfloat16()
    bias = torch.randn(n, generator=draw).bfloat16() if with_bias else None
    want = x.double() @ wide(w).T + (0 if bias is None else bias.double())
    y = linear(x, LinearKernels(variant).pack_weight(w, scheme=scheme), bias)
    assert y.dtype == torch.bfloat16
    terms = x.double().abs() @ magnitude(w).T
    assert ((y.double() - want).abs() <= ROUNDOFF * want.abs() + SUMS * terms).all()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_number_of_tokens(variant: str, scheme: str) -> None:
    """1 to 70 tokens, whatever block they fall in: a token has the bits that it has alone, and on one thread."""
    draw = torch.Generator().manual_seed(2)
    k = fit(scheme, 4200)
    handle = LinearKernels(variant).pack_weight(weight(scheme, 88, k, draw), scheme=scheme)
    x = torch.randn(70, k, generator=draw).bfloat16()
    alone = torch.cat([linear(row[None], handle) for row in x])
    for rows in range(71):
        assert linear(x[:rows], handle).equal(alone[:rows])
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert linear(x, handle).equal(alone)
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize("n", [1, 16, 17, 33, 64, 65, 100, 192, 208])
def test_strips_are_shared_by_threads(n: int) -> None:
    """Groups of 4 strips that threads share, and fewer strips than threads."""
    draw = torch.Generator().manual_seed(3)
    w, x = weight("dense", n, 96, draw), torch.randn(9, 96, generator=draw).bfloat16()
    exact = x.double() @ wide(w).T
    y = linear(x, LinearKernels(VARIANTS[0]).pack_weight(w))
    assert ((y.double() - exact).abs() <= ROUNDOFF * exact.abs() + 1e-4).all()


@pytest.mark.parametrize("num", [9, 33])
@pytest.mark.parametrize("k", [31, 64, 65])
@pytest.mark.parametrize("variant", VARIANTS)
def test_no_number_reaches_another_row_or_column(variant: str, k: int, num: int) -> None:
    draw = torch.Generator().manual_seed(4)
    w, x = torch.randn(40, k, generator=draw).bfloat16(), torch.randn(num, k, generator=draw).bfloat16()
    kernels = LinearKernels(variant)
    x[3], w[17] = float("nan"), float("nan")
    x[5, -1], w[:, -1] = float("inf"), w[:, -1].abs() + 1
    clean = linear(x[:3], kernels.pack_weight(w[:17]))
    y = linear(x, kernels.pack_weight(w))
    assert y[3].isnan().all()
    assert y[:, 17].isnan().all()
    assert not y[6:, :17].isnan().any()
    assert (y[5, :17] == float("inf")).all()
    assert y[:3, :17].equal(clean)


@pytest.mark.parametrize("variant", VARIANTS)
def test_results_are_rounded_to_the_nearest_and_ties_to_even(variant: str) -> None:
    """Sums on both sides of the middle between two bfloat16, on it, and beyond the largest."""
    w = torch.eye(4).bfloat16()
    step = 2.0**-7
    x = torch.tensor(
        [[1, step / 2, 0, 0], [1 + step, step / 2, 0, 0], [1, step / 2, step / 256, 0], [3e38, 3e38, 0, 0]]
    )
    ones = torch.ones(1, 4).bfloat16()
    y = linear(x.bfloat16(), LinearKernels(variant).pack_weight(torch.cat([ones, w])))
    assert y[:, 0].tolist() == [1, 1 + 2 * step, 1 + step, float("inf")]
    assert y[:, 1:].equal(x.bfloat16())


@pytest.mark.parametrize("variant", VARIANTS)
def test_views_are_read_as_they_are(variant: str) -> None:
    draw = torch.Generator().manual_seed(5)
    x, w = torch.randn(9, 200, generator=draw).bfloat16(), torch.randn(150, 130, generator=draw).bfloat16()
    kernels = LinearKernels(variant)
    part, other = x[::2, 3:72], w[3:105:2, 61:130]
    want = linear(part.contiguous(), kernels.pack_weight(other.contiguous()))
    assert linear(part, kernels.pack_weight(other)).equal(want)
    assert linear(part.T.contiguous().T, kernels.pack_weight(other.T.contiguous().T)).equal(want)


@pytest.mark.parametrize("scheme", ["q4_1", "q8_0"])
def test_tiles_do_not_depend_on_pieces(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    w, kernels = weight(scheme, 200, 96, torch.Generator().manual_seed(6)), LinearKernels(VARIANTS[0])
    whole = kernels.pack_weight(w, scheme=scheme)
    monkeypatch.setattr("devices.cpu.native.linear._PIECE", 1)
    assert kernels.pack_weight(w, scheme=scheme).tiles.equal(whole.tiles)


def test_no_memory_is_an_error_with_a_remedy() -> None:
    handle = LinearKernels(VARIANTS[0]).pack_weight(torch.zeros(1, 1).bfloat16())
    failing = handle._replace(multiply=lambda *args: 1)
    with pytest.raises(DeviceError, match="no memory for a step of 2 tokens: lower max_num_batched_tokens"):
        linear(torch.zeros(2, 1).bfloat16(), failing)
