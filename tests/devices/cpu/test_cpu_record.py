"""Recorded steps: the bits of a call, from what lies at the same addresses by then; and what cannot be recorded."""

import gc
from collections.abc import Callable

import pytest
import torch

from core.errors import DeviceError
from core.plugin import CannotCompile
from devices.cpu.native import library
from devices.cpu.native.linear import LinearKernels, linear
from devices.cpu.native.record import Arena, Recorded
from devices.cpu.native.rows import RowKernels

E, N = 48, 80
Step = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


@pytest.fixture(params=library.variants())
def step(request: pytest.FixtureRequest) -> Step:
    """Four layers that add to a sum, and rope, which writes in place."""
    rows, products = RowKernels(request.param), LinearKernels(request.param)
    torch.manual_seed(1)
    up = [products.pack_weight(torch.randn(2 * N, E).bfloat16() / 8) for _ in range(4)]
    down = [products.pack_weight(torch.randn(E, N).bfloat16() / 8) for _ in range(4)]
    w, cos_sin = torch.randn(E).bfloat16(), torch.randn(1, 16).bfloat16()

    def run(x: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = rows.rms_norm(x, w, eps=1e-5)
        y = rows.rms_norm(total, w, eps=1e-5)
        for one, other in zip(up, down, strict=True):
            turned = rows.rope(linear(y, one).view(len(x), -1, 16), cos_sin.expand(len(x), 16)[:, :16].contiguous())
            y = linear(rows.act_mul(turned.view(len(x), -1), act="silu"), other, bias)
            y, total = rows.add_rms_norm(y, total, w, eps=1e-5)
        return y[:, : E // 2], total

    return run


def given(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    return torch.randn(1, E).bfloat16(), torch.randn(E).bfloat16()


@torch.inference_mode()
def test_a_replay_has_the_bits_of_a_call(step: Step) -> None:
    x, bias = given(2)
    recorded = Recorded(step, Arena())
    assert all(a.equal(b) for a, b in zip(recorded(x, bias), step(x, bias), strict=True))
    for seed in range(3, 9):
        for here, new in zip((x, bias), given(seed), strict=True):
            here.copy_(new)
        want = step(x, bias)
        assert all(a.equal(b) for a, b in zip(recorded(x, bias), want, strict=True))


@torch.inference_mode()
def test_memory_is_used_again(step: Step) -> None:
    """Of layers by later layers, and of recordings by others of their arena: it does not grow with either."""
    arena = Arena()
    x, bias = given(2)
    recordings = [Recorded(step, arena)]
    recordings[0](x, bias)
    size = arena.num_bytes
    assert 0 < size < 8 * 2 * (2 * N + E) * 2
    for _ in range(5):
        recordings.append(Recorded(step, arena))
        recordings[-1](x, bias)
    gc.collect()
    assert arena.num_bytes == size
    want = step(x, bias)
    for recorded in recordings:  # whichever ran before
        assert all(a.equal(b) for a, b in zip(recorded(x, bias), want, strict=True))


@torch.inference_mode()
def test_what_torch_computes_is_refused(step: Step) -> None:
    """Copies that look like views, too. The recording ends, and what it took is free again."""
    x, bias = given(2)
    arena = Arena()
    Recorded(step, arena)(x, bias)
    size = arena.num_bytes
    strays: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda y: y + 1,
        lambda y: y.clone(),
        lambda y: y.view(6, 8).t().contiguous(),
        lambda y: y.view(6, 8).t().reshape(-1),
        lambda y: y.mul_(2),
        lambda y: y if y[0, 0].item() else y[:],
        lambda y: torch.zeros_like(y),
    ]
    for stray in strays:

        def broken(x: torch.Tensor, bias: torch.Tensor, stray: Callable[..., torch.Tensor] = stray) -> torch.Tensor:
            return stray(step(x, bias)[1])

        with pytest.raises(CannotCompile, match=r"torch (computes|copies for) .* between kernels"):
            Recorded(broken, arena)(x, bias)
        assert arena.num_bytes == size
        assert step(x, bias)[1].isfinite().all(), "nothing is recorded any more"
        assert arena.num_bytes == size


@torch.inference_mode()
def test_tensors_elsewhere_are_refused(step: Step) -> None:
    x, bias = given(2)
    recorded = Recorded(step, Arena())
    recorded(x, bias)
    with pytest.raises(DeviceError, match="was given others"):
        recorded(x.clone(), bias)
