"""Adopted references: called with tensors of the host, they give and write what the references do."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

from core.kernels.schemes import Q41Weight
from core.kernels.table import TABLE
from core.plugin import DeviceFacts
from devices.xla.device import XlaDevice

pytestmark = pytest.mark.heavy
HEADS, KV_HEADS, SIZE, PAGE = 4, 2, 16, 8


@pytest.fixture(scope="module")
def kernels() -> dict[str, Callable[..., Any]]:
    device = XlaDevice()
    facts = device.probe()
    assert isinstance(facts, DeviceFacts), facts
    device.open(0)
    from devices.xla.kernels import implementations

    return {found.row: found.kernel for found in implementations(facts)}


def reference(row: str) -> Callable[..., Any]:
    return partial(TABLE[row].reference, **{part: TABLE[part].reference for part in TABLE[row].parts})


def ids(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def leaves(found: Any) -> Iterator[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        yield found
    else:
        for part in found:
            yield from leaves(part)


def same(kernels: dict[str, Callable[..., Any]], row: str, *args: Any, error: float = 0.0, **fixed: Any) -> Any:
    """Compare, in bits or up to `error` of the greatest magnitude. Returns the arguments after the device's call."""
    mine = copy.deepcopy(args)
    wanted, found = list(leaves(reference(row)(*args, **fixed))), list(leaves(kernels[row](*mine, **fixed)))
    for w, f in zip(wanted, found, strict=True):
        assert (w.shape, w.dtype) == (f.shape, f.dtype)
        assert torch.equal(w.isnan(), f.isnan())
        exact = w.double().nan_to_num()
        assert (exact - f.double().nan_to_num()).abs().max() <= error * exact.abs().max(), row
    return mine


@pytest.mark.parametrize("window", [None, 12])
def test_attention(kernels: dict[str, Callable[..., Any]], window: int | None) -> None:
    """Three sequences, one of padding, in a pool that is NaN where nobody wrote."""
    torch.manual_seed(0)
    lens, table = ids(20, 5, 2, 0), torch.arange(1, 17, dtype=torch.int32).view(4, 4)
    shape = {"num_tokens": 8, "page_tokens": PAGE, "window": window}
    same(kernels, "attn_plan", ids(0, 3, 4, 6, 6), lens, table, **shape)
    plan = reference("attn_plan")(ids(0, 3, 4, 6, 6), lens, table, **shape)
    planes = tuple(torch.full((17, PAGE, KV_HEADS, SIZE), float("nan")) for _ in range(2))
    for plane in planes:
        for page, num in ((1, 8), (2, 8), (3, 4), (5, 5), (9, 2)):
            plane[page, :num] = torch.randn(num, KV_HEADS, SIZE)
    fixed = {"scale": 0.25, "page_tokens": PAGE, "window": window, "softcap": 5.0, "want_lse": True}
    same(kernels, "attn_paged", torch.randn(8, HEADS, SIZE), planes, plan, error=1e-6, **fixed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_written_is_written_in_place(kernels: dict[str, Callable[..., Any]], dtype: torch.dtype) -> None:
    planes = tuple(torch.zeros(5, PAGE, KV_HEADS, SIZE, dtype=dtype) for _ in range(2))
    k, v = (torch.randn(4, KV_HEADS, SIZE).to(dtype) for _ in range(2))
    mine = same(kernels, "kv_write", k, v, planes, ids(8, 9, 39, -1), page_tokens=PAGE)
    for plane, x in zip(mine[2], (k, v), strict=True):
        assert torch.equal(plane.view(-1, KV_HEADS, SIZE)[[8, 9, 39]], x[:3])
        assert plane.count_nonzero() == 4 * KV_HEADS * SIZE
    mine = same(kernels, "put_ids", ids(9, 8, 7), ids(2, 0), ids(4, 5))
    assert mine[0][2] == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dense(kernels: dict[str, Callable[..., Any]], dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    error = 1e-6 if dtype == torch.float32 else 2**-8
    x, y, w = torch.randn(8, 32).to(dtype), torch.randn(8, 32).to(dtype), torch.randn(32).to(dtype)
    same(kernels, "linear", x, torch.randn(64, 32).to(dtype), torch.randn(64).to(dtype), error=error)
    same(kernels, "add_rms_norm", x, y, w, eps=1e-5, error=error)
    same(kernels, "rope", torch.randn(8, HEADS, SIZE).to(dtype), torch.randn(8, SIZE - 4).to(dtype), error=error)
    for act in ("silu", "gelu", "gelu_tanh"):
        same(kernels, "act_mul", x, act=act, error=error)


@pytest.mark.parametrize("greedy", [True, False])
def test_draws_are_the_same_ids(kernels: dict[str, Callable[..., Any]], greedy: bool) -> None:
    """Ties, NaN, and every limit: what is drawn depends on logits, seed and counter alone, here as there."""
    torch.manual_seed(2)
    logits = torch.randn(40, 384) * 3
    logits[0, [5, 9]], logits[3, 1], logits[4] = 20.0, float("nan"), float("-inf")
    logits[5:9] = logits[5:9].round() / 2  # many ties, and zeros of both signs
    assert (logits[5:9].view(torch.int32) == -(2**31)).any()
    temperature = torch.tensor([0.0, 0.7, 1.0, 1.0] * 10)
    top_k, top_p = ids(*[0, 5, -1, 300] * 10), torch.tensor([1.0, 0.9, 0.5, 1.0] * 10)
    seed = torch.randint(-(2**31), 2**31, (40, 2), dtype=torch.int32)
    row = logits, temperature, top_k, top_p, seed, torch.arange(40, dtype=torch.int32)
    same(kernels, "sample", *row, greedy=greedy, top_k_max=0)


def test_moves_keep_every_bit_of_bfloat16(kernels: dict[str, Callable[..., Any]]) -> None:
    """Payloads of NaN, infinities and the smallest numbers pass as they are."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(64, 2, 32, 16)
    plane, rows = bits.view(torch.bfloat16), torch.arange(63, -1, -1, dtype=torch.int32)
    moved = {
        "gather_rows": kernels["gather_rows"](plane, rows),
        "kv_gather": kernels["kv_gather"]((plane, plane), rows)[1],
        "embed": kernels["embed"](rows, plane.reshape(64, -1), first=0).view(plane.shape),
        "copy_rows": kernels["copy_rows"](torch.zeros_like(plane), rows, plane),
    }
    for row, found in moved.items():
        assert torch.equal(found.view(torch.int16), bits.flip(0)), row


def test_packed_weights(kernels: dict[str, Callable[..., Any]]) -> None:
    torch.manual_seed(3)
    codes = torch.randint(0, 256, (48, 32), dtype=torch.uint8)
    weight = Q41Weight(codes, torch.rand(48, 2).half(), torch.randn(48, 2).half())
    same(kernels, "linear", torch.randn(5, 64), weight, error=1e-6)
