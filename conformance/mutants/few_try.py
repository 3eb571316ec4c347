"""Kernels that are wrong at sizes that few try, or in what one call leaves to the next.

The first ten were held back while the checks of that time were made, and seven of them then passed.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import torch

from conformance.mutants.attention_plain import PLAIN, Plan, plain_plan
from conformance.mutants.mutant import cheat, wrong
from core.engine.step_input import HostLengths
from core.kernels.reference import attention, comm, dense, kv, sampling
from core.kernels.row import Kernel
from core.plugin.device import Event

Tensor = torch.Tensor

HEADS_OF_A_BLOCK = 8
FAR_PAGE = 256
LONG_K, SPLITS = 8192, 4
ID_VALUES = 1 << 16
PIECE = 4096
VECTOR, LONG_ROW = 8, 1024
RACE = 1 / 1000
MOST = 1024
"""Of tokens in a call, and of ids in a history."""


def _by_turns(x: Tensor, num_heads: int) -> Tensor:
    """Key heads [L, Hkv, D] of the query heads [L, H, D]: from eight key heads on, neighbours share no head."""
    times = num_heads // x.shape[1]
    return x.repeat(1, times, 1) if x.shape[1] >= HEADS_OF_A_BLOCK else x.repeat_interleave(times, 1)


wrong("attn_paged", {"attn_plan": plain_plan})(replace(PLAIN, share=_by_turns).kernel("heads_by_turns_from_eight"))


def _keeps_lengths() -> Kernel:
    """A plan that is kept while no sequence takes another page."""
    kept: dict[Any, Tensor] = {}

    def lengths_of_the_step_before(*args: Tensor, **fixed: Any) -> Plan:
        plan, host = plain_plan(*args, **fixed), fixed["host"]
        if not (isinstance(host, HostLengths) and host.exact):
            return plan
        pages = -(-host.kv_lens // fixed["page_tokens"])
        key = tuple(plan.table.shape), tuple(host.query_lens.tolist()), tuple(pages.tolist())
        return plan._replace(lens=kept.setdefault(key, plan.lens.clone()))

    return lengths_of_the_step_before


wrong("attn_plan", {"attn_paged": PLAIN.kernel("plain")})(_keeps_lengths())


@wrong("attn_merge")
def small_rises_not_rescaled(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> tuple[Tensor, Tensor]:
    """Where the second side's lse is greater by less than 1, the first is taken to be as great."""
    rise = lse2 - lse1
    return attention.attn_merge(o1, torch.where((rise > 0) & (rise < 1), lse2, lse1), o2, lse2)


@wrong("kv_write")
def turned_from_page_256(k: Tensor, v: Tensor, planes: kv.Planes, slots: Tensor, *, page_tokens: int) -> kv.Planes:
    """Past the first pages of a pool, numbers of an entry are written one place further on."""
    is_far = (slots >= FAR_PAGE * page_tokens)[:, None, None]
    k, v = (x.roll(1, -1).where(is_far, x) for x in (k, v))
    return kv.kv_write(k, v, planes, slots, page_tokens=page_tokens)


@wrong("kv_write")
def first_tokens_of_many(k: Tensor, v: Tensor, planes: kv.Planes, slots: Tensor, *, page_tokens: int) -> kv.Planes:
    """A grid of so many blocks at most: tokens after those are not written."""
    return kv.kv_write(k[:MOST], v[:MOST], planes, slots[:MOST], page_tokens=page_tokens)


@wrong("linear")
def narrow_partial_sums(x: Tensor, handle: dense.Weight, bias: Tensor | None = None) -> Tensor:
    """For a long K, parts of it are summed apart, and their sums kept in the dtype."""
    if not isinstance(handle, Tensor) or x.shape[1] < LONG_K:
        return dense.linear(x, handle, bias)
    parts = zip(x.chunk(SPLITS, 1), handle.chunk(SPLITS, 1), strict=True)
    total = torch.stack([dense.linear(*part) for part in parts]).sum(0)
    return total if bias is None else total + bias


def _one_buffer() -> Kernel:
    buffers: dict[Any, Tensor] = {}

    def one_buffer_per_shape(x: Tensor, handle: dense.Weight, bias: Tensor | None = None) -> Tensor:
        """Its result is there until the next call."""
        y = dense.linear(x, handle, bias)
        return buffers.setdefault((y.shape, y.dtype), y).copy_(y)

    return one_buffer_per_shape


cheat("linear")(_one_buffer())


@wrong("sample")
def ids_of_16_bits(*args: Tensor, **fixed: Any) -> Tensor:
    """Logit and id are packed into one word to find the greatest."""
    ids = sampling.sample(*args, **fixed)
    return ids.where(ids < 0, ids % ID_VALUES)


@wrong("penalize")
def start_of_a_long_history(scores: Tensor, history: Tensor, *rest: Tensor) -> Tensor:
    return sampling.penalize(scores, history[:, :MOST], *rest)


@wrong("all_reduce")
def rest_of_a_message_not_summed(x: Tensor, *, group: Any) -> Tensor:
    """Long messages go in whole pieces, and what is left over stays this rank's."""
    flat = x.view(-1)
    whole = len(flat) // PIECE * PIECE if len(flat) > PIECE else len(flat)
    comm.all_reduce(flat[:whole], group=group)
    return x


class _Staged(Event):
    """A copy through the one staging buffer, done in order when somebody waits."""

    buffer = torch.empty(0, dtype=torch.uint8)
    pending: list[_Staged] = []  # noqa: RUF012  of all copies

    def __init__(self, dst: Tensor, src: Tensor) -> None:
        self._dst, self._num_bytes = dst, src.nbytes
        if len(self.buffer) < src.nbytes:
            _Staged.buffer = torch.empty(src.nbytes, dtype=torch.uint8)
        self.buffer[: src.nbytes] = src.contiguous().view(-1).view(torch.uint8)
        self.pending.append(self)

    def wait(self) -> None:
        for copy in self.pending:
            copy.land()
        self.pending.clear()

    synchronize = wait

    def land(self) -> None:
        there = self.buffer[: self._num_bytes].view(self._dst.dtype)
        self._dst.copy_(there.view(self._dst.shape))


@wrong("h2d")
def one_staging_buffer(dst: Tensor, src: Tensor) -> Event:
    """It does not wait for the copy before to have left the buffer."""
    return _Staged(dst, src)


def _rarely_racy() -> Kernel:
    chance = random.Random(0)

    def rarely_racy(x: Tensor, w: Tensor, *, eps: float) -> Tensor:
        """In about one call of a thousand, a row of the last block is read before it is written."""
        y = dense.rms_norm(x, w, eps=eps)
        if chance.random() < RACE and len(y):
            y[-1] = 0
        return y

    return rarely_racy


cheat("rms_norm")(_rarely_racy())


@wrong("act_mul")
def tail_of_one_in_long_rows(x: Tensor, *, act: str) -> Tensor:
    """Rows that are long are read by vectors; a tail of one number gets that of the lane before."""
    y = dense.act_mul(x, act=act)
    if y.shape[1] > LONG_ROW and y.shape[1] % VECTOR == 1:
        y[:, -1] = y[:, -2]
    return y
