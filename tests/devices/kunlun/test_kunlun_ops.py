"""What the vendor's ops refuse, the plugin says by name: before anything is launched, so on tensors of the host."""

from __future__ import annotations

import pytest
import torch

from core.errors import DeviceError
from core.plugin import DeviceFacts, Need
from devices.kunlun import limits
from devices.kunlun.attention import Attention
from devices.kunlun.kernels import implementations
from devices.kunlun.kv import kv_layout
from devices.kunlun.ops import Ops
from devices.kunlun.sim import vendor as stand_in

OPS = Ops(stand_in)
PAGE, HEADS, SIZE = 16, 2, 64


def planes(num_pages: int = 4) -> tuple[torch.Tensor, ...]:
    layout = kv_layout(num_kv_heads=HEADS, head_size=SIZE, page_tokens=PAGE, dtype="float32")
    dtypes = {"int8": torch.int8, "float32": torch.float32}
    shapes = layout.shapes(num_pages)
    return tuple(torch.zeros(s, dtype=dtypes[p.dtype]) for s, p in zip(shapes, layout.planes, strict=True))


def test_a_product_over_the_limit_is_refused_with_the_limit() -> None:
    x, w, out = torch.zeros(1, 2), torch.zeros(limits.MAX_N + 1, 2), torch.zeros(1, limits.MAX_N + 1)
    with pytest.raises(
        DeviceError, match=rf"matmul refused .*\[{limits.MAX_N + 1}, 2\].* at most {limits.MAX_N} columns"
    ):
        OPS.matmul(x, w, out)


def test_a_batch_over_the_limit_is_refused_with_the_limit() -> None:
    num = limits.MAX_SEQS + 1
    attention = Attention(OPS)
    starts, lens = torch.arange(num + 1, dtype=torch.int32), torch.ones(num, dtype=torch.int32)
    table = torch.ones((num, 1), dtype=torch.int32)
    plan = attention.attn_plan(starts, lens, table, num_tokens=num, page_tokens=PAGE)
    with pytest.raises(DeviceError, match=rf"prefill_attention refused .*\[{num}, 1\].* at most {limits.MAX_SEQS} seq"):
        attention.attn_paged(torch.zeros(num, HEADS, SIZE), planes(), plan, scale=1.0, page_tokens=PAGE)


def test_a_cache_with_gaps_is_refused() -> None:
    """The vendor's own op writes to the wrong slots then, and says that all is well."""
    wide = torch.zeros((4, HEADS, 2 * PAGE, SIZE), dtype=torch.int8)
    gappy = (wide[:, :, :PAGE], *planes()[1:])
    k = torch.zeros(1, HEADS, SIZE)
    codes = torch.zeros(1, HEADS, SIZE, dtype=torch.int8)
    with pytest.raises(DeviceError, match=r"reshape_and_cache refused .*with gaps.* takes caches without gaps"):
        OPS.reshape_and_cache(codes, codes, *gappy[:2], torch.zeros(len(k), dtype=torch.int32))


@pytest.mark.parametrize(
    ("op", "x"),
    [("rmsnorm", torch.zeros(2, 8, dtype=torch.float64)), ("rmsnorm", torch.zeros(8, 2).t())],
    ids=["float64", "gaps"],
)
def test_other_dtypes_and_gaps_are_refused(op: str, x: torch.Tensor) -> None:
    with pytest.raises(DeviceError, match=rf"{op} refused with code 1: it was given float"):
        getattr(OPS, op)(x, torch.ones(8), 1e-5, out=torch.empty_like(x))


def test_blocks_are_swapped_by_pairs_on_the_host() -> None:
    with pytest.raises(DeviceError, match="swap_blocks refused"):
        OPS.swap_blocks(torch.zeros(4, 4).t(), torch.zeros(4, 4), torch.zeros(1, 2, dtype=torch.int64))


def test_weights_of_another_scheme_have_no_kernel() -> None:
    class Here:
        ops = stand_in

    made = implementations(DeviceFacts("kunlun", "cpu", "a test", 1, 1, limits.DTYPES), Here())
    refused = {one.row for one in made if one.support.refuses(Need(dtype="float32", scheme="q4_1"))}
    assert refused == {"linear", "pack_weight"}
