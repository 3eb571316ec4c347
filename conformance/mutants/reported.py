"""Kernels with bugs that kernels of accelerators were reported with: see `Source:`.

They were held back while the checks of that time were made. Of ten, four were refused then; of the two that are not
here, one overflows offsets beyond 2 GiB, and one mixes up senders, which shows in some runs only.
"""

from __future__ import annotations

from typing import Any

import torch

from conformance.mutants.attention_plain import PLAIN, Entries, Plan, plain_plan
from conformance.mutants.mutant import wrong
from core.kernels.reference import copy, dense, kv, sampling
from core.kernels.row import Kernel

Tensor = torch.Tensor

WORKSPACE = 1 << 20
MANY_ROWS = 8


def block_of(head_size: int) -> int:
    """Keys in a block of flash attention: more than one of them, and their sums are made apart."""
    return 256 if head_size <= 64 else 128 if head_size <= 128 else 64


@wrong("attn_paged", {"attn_plan": plain_plan})
def lse_of_decode_by_heads(q: Tensor, planes: kv.Planes, plan: Plan, **fixed: Any) -> Tensor | Entries:
    """Where every sequence has one query, and keys are split, lse is stored with heads before sequences.

    Source: vllm-project/flash-attention#87.
    """
    if not fixed.get("want_lse"):
        return PLAIN.attend(q, planes, plan, **fixed)
    o, lse = PLAIN.attend(q, planes, plan, **fixed)
    num_real, num_heads = int(plan.num_real), q.shape[1]
    is_decode = int((plan.ends - plan.begins).max()) == 1 and fixed.get("window") is None
    if is_decode and num_heads > planes[0].shape[2] and int(plan.lens.max()) > block_of(q.shape[2]):
        lse[:num_real] = lse[:num_real].T.reshape(num_real, num_heads)
    return o, lse


def one_workspace() -> Kernel:
    """The plan of the next KV group is written over that of this one, which layers still read.

    Source: flashinfer-ai/flashinfer#442.
    """
    workspace = torch.empty(WORKSPACE, dtype=torch.int32)

    def one_workspace(*args: Tensor, **fixed: Any) -> Plan:
        parts, first = [], 0
        for part in plain_plan(*args, **fixed):
            there = workspace[first : first + part.numel()].view(part.shape)
            parts.append(there.copy_(part))
            first += part.numel()
        return Plan(*parts)

    return one_workspace


wrong("attn_plan", {"attn_paged": PLAIN.kernel("plain")})(one_workspace())


def strided_as(x: Tensor, other: Tensor) -> Tensor:
    """x read from its first number on as if it had the strides of `other`, of the same shape."""
    index = torch.full(x.shape, int(x.storage_offset()))
    for axis, (size, stride) in enumerate(zip(x.shape, other.stride(), strict=True)):
        index += (torch.arange(size) * stride).view(-1, *[1] * (x.dim() - 1 - axis))
    num_stored = x.untyped_storage().nbytes() // x.element_size()
    return x.as_strided((num_stored,), (1,), 0)[index % num_stored]


@wrong("kv_write")
def values_by_the_strides_of_keys(
    k: Tensor, v: Tensor, planes: kv.Planes, slots: Tensor, *, page_tokens: int
) -> kv.Planes:
    """Right where both are parts of one product; keys that were turned by then have memory of their own.

    Source: ROCm/aiter#2772, flashinfer-ai/flashinfer#4480 (reviews: strides of one tensor for another).
    """
    return kv.kv_write(k, strided_as(v, k), planes, slots, page_tokens=page_tokens)


@wrong("kv_swap")
def runs_by_the_source_alone(
    target: kv.Planes, source: kv.Planes, target_pages: Tensor, source_pages: Tensor, *, layout: kv.KVLayout
) -> kv.Planes:
    """Source pages that follow each other are copied at once, to where the first of them goes.

    Source: vllm-project/vllm#56110 (which looks at both sides).
    """
    into = target_pages.tolist()
    out_of = source_pages.tolist()
    for i in range(1, len(into)):
        if out_of[i] == out_of[i - 1] + 1:
            into[i] = into[i - 1] + 1
    num_pages = target[0].shape[layout.planes[0].page_axis]
    for i, page in enumerate(into):
        if page < num_pages:  # beyond the pool is other memory
            there = torch.tensor([page], dtype=torch.int32)
            copy.kv_swap(target, source, there, source_pages[i : i + 1], layout=layout)
    return target


def weights_known_by_address() -> Kernel:
    """The form that the matrix unit wants is made when weights are seen first, and kept by their address.

    Source: flashinfer-ai/flashinfer#4069, sgl-project/sglang#30247 (reviews).
    """
    kept: dict[Any, dense.Weight] = {}

    def weights_known_by_address(x: Tensor, handle: dense.Weight, bias: Tensor | None = None) -> Tensor:
        parts = (handle,) if isinstance(handle, Tensor) else handle
        key = tuple((part.data_ptr(), part.shape, part.dtype) for part in parts)
        if key not in kept:
            kept[key] = handle.clone() if isinstance(handle, Tensor) else type(handle)(*(p.clone() for p in handle))
        return dense.linear(x, kept[key], bias)

    return weights_known_by_address


wrong("linear")(weights_known_by_address())


@wrong("softcap")
def nan_becomes_the_cap(x: Tensor, *, cap: float) -> Tensor:
    """The polynomial for tanh is cut off at 1 by a minimum, which drops NaN.

    Source: tenstorrent/tt-metal#52448 (review).
    """
    return dense.softcap(x, cap=cap).masked_fill(x.isnan(), cap)


@wrong("sample")
def equals_of_the_kth_kept(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    *drawn_by: Tensor,
    greedy: bool,
    top_k_max: int,
) -> Tensor:
    """Of fewer than 8 rows, every token as likely as the k-th stays, so that more than k do.

    Source: vllm-project/vllm#50979.
    """
    if len(logits) < MANY_ROWS and not greedy:
        size = logits.shape[1]
        k = torch.where((top_k > 0) & (top_k < size), top_k, size).long()
        kth = logits.float().sort(-1, descending=True).values.gather(1, k[:, None] - 1)
        logits, top_k, top_k_max = logits.masked_fill(logits < kth, float("-inf")), torch.zeros_like(top_k), 0
    return sampling.sample(logits, temperature, top_k, top_p, *drawn_by, greedy=greedy, top_k_max=top_k_max)


@wrong("penalize")
def counts_in_the_dtype(
    logits: Tensor,
    history: Tensor,
    num_prompt: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
) -> Tensor:
    """How often an id came is summed in the dtype of logits: in bfloat16, 256 + 1 is 256.

    Source: huggingface/candle#3520 (positions in bfloat16).
    """
    size = logits.shape[-1]
    most = {torch.bfloat16: 256, torch.float16: 2048}.get(logits.dtype, history.shape[1])
    none = torch.zeros_like(frequency)
    y = sampling.penalize(logits, history, num_prompt, repetition, none, none)
    is_output = (torch.arange(history.shape[1]) >= num_prompt[:, None]) & (history >= 0)
    ids = history.where(is_output, size).long()
    counts = torch.zeros(len(logits), size + 1).scatter_add(1, ids, torch.ones(ids.shape))[:, :size]
    return y - frequency[:, None] * counts.clamp(max=most) - presence[:, None] * (counts > 0)
