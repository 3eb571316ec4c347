"""A plain attention made of parts, each of which a wrong or right kernel replaces; and its plan.

It goes through sequences one after another, in float32: slow, and open to be changed.

Legend: Q queries of a sequence, L entries that are read for it, H query heads, Hkv key heads, D head size, S sequences,
B pages in a block table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from conformance.mutants.mutant import cheat, right, wrong
from core.kernels.reference.kv import Planes
from core.kernels.row import Kernel
from core.plugin.facts import Support

Tensor = torch.Tensor
Entries = tuple[Tensor, Tensor]


class Plan(NamedTuple):
    """Of each sequence: its first token, the token after its last, its length, its pages; and the real tokens."""

    begins: Tensor
    ends: Tensor
    lens: Tensor
    table: Tensor
    num_real: Tensor


def plain_plan(query_starts: Tensor, kv_lens: Tensor, block_table: Tensor, **fixed: Any) -> Plan:
    return Plan(query_starts[:-1], query_starts[1:], kv_lens, block_table, query_starts[-1])


def read(planes: Planes, pages: Tensor, length: int, page: int) -> Entries:
    """Keys and values of a sequence with these pages [B]: each [length, Hkv, D]."""
    k, v = (plane[pages[: -(-length // page)].long()].flatten(0, 1)[:length] for plane in planes)
    return k, v


def read_whole_pages(planes: Planes, pages: Tensor, length: int, page: int) -> Entries:
    """With what follows in the last page, and a page more."""
    return read(planes, pages, (length // page + 2) * page, page)


def seen(at: Tensor, entry: Tensor, window: int | None) -> Tensor:
    """Which entries [1, L] queries at positions [Q, 1] see: bool [Q, L]."""
    causal = entry <= at
    return causal if window is None else causal & (entry > at - window)


def clean(x: Tensor, is_read: Tensor) -> Tensor:
    """x [L, Hkv, D] with 0 where nobody reads; is_read bool [L]."""
    return x.where(is_read[:, None, None], 0)


def share(x: Tensor, num_heads: int) -> Tensor:
    """Keys or values [L, Hkv, D] of each query head: [L, H, D]."""
    return x.repeat_interleave(num_heads // x.shape[1], 1)


def score(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """q [H, Q, D], k [H, L, D] -> [H, Q, L]"""
    return q @ k.transpose(1, 2) * scale


def cap(scores: Tensor, softcap: float | None) -> Tensor:
    return scores if softcap is None else torch.tanh(scores / softcap) * softcap


def limit(scores: Tensor, softcap: float | None, visible: Tensor) -> Tensor:
    """Scores after softcap, -inf where `visible` [Q, L] is not."""
    return cap(scores, softcap).masked_fill(~visible, float("-inf"))


def weigh(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    """scores [H, Q, L], v [H, L, D] -> o [H, Q, D], lse [H, Q]. `dtype`: of the activations."""
    top = scores.amax(-1, keepdim=True)
    top = top.where(top > float("-inf"), 0)
    p = torch.exp(scores - top)
    total = p.sum(-1, keepdim=True)
    return p @ v / total.where(total > 0, 1), (top + total.log())[..., 0]


def store(o: Tensor, dtype: torch.dtype) -> Tensor:
    """o [Q, H, D] as it is kept."""
    return o.to(dtype)


def pad(o: Tensor, lse: Tensor, num_real: int) -> None:
    """What padding tokens get, in o [T, H, D] and lse [T, H]."""
    o[num_real:], lse[num_real:] = 0, float("-inf")


def row_of(plan: Plan, s: int) -> Tensor:
    """The pages of sequence `s`."""
    return plan.table[s]


@dataclass(frozen=True)
class Parts:
    """See the functions above. `wide` is the dtype of everything between reading and storing."""

    row_of: Callable[[Plan, int], Tensor] = row_of
    read: Callable[[Planes, Tensor, int, int], Entries] = read
    seen: Callable[[Tensor, Tensor, int | None], Tensor] = seen
    clean: Callable[[Tensor, Tensor], Tensor] = clean
    share: Callable[[Tensor, int], Tensor] = share
    score: Callable[[Tensor, Tensor, float], Tensor] = score
    limit: Callable[[Tensor, float | None, Tensor], Tensor] = limit
    weigh: Callable[[Tensor, Tensor, torch.dtype], Entries] = weigh
    store: Callable[[Tensor, torch.dtype], Tensor] = store
    pad: Callable[[Tensor, Tensor, int], None] = pad
    wide: torch.dtype = torch.float32

    def attend(
        self,
        q: Tensor,
        planes: Planes,
        plan: Plan,
        *,
        scale: float,
        page_tokens: int,
        window: int | None = None,
        softcap: float | None = None,
        want_lse: bool = False,
    ) -> Tensor | Entries:
        """attn_paged, of these parts."""
        o, lse = torch.empty_like(q, memory_format=torch.contiguous_format), torch.empty(q.shape[:2])
        for s, (begin, end, length) in enumerate(torch.stack(plan[:3], 1).tolist()):
            if end > begin:
                k, v = self.read(planes, self.row_of(plan, s), length, page_tokens)
                at = torch.arange(length - (end - begin), length)[:, None]
                visible = self.seen(at, torch.arange(len(k))[None], window)
                k, v = (
                    self.share(self.clean(x, visible.any(0)), q.shape[1]).transpose(0, 1).to(self.wide) for x in (k, v)
                )
                scores = self.score(q[begin:end].transpose(0, 1).to(self.wide), k, scale)
                some, some_lse = self.weigh(self.limit(scores, softcap, visible), v, q.dtype)
                o[begin:end], lse[begin:end] = self.store(some.transpose(0, 1), q.dtype), some_lse.T
        self.pad(o, lse, int(plan.num_real))
        return (o, lse) if want_lse else o

    def kernel(self, name: str) -> Kernel:
        def attn_paged(q: Tensor, planes: Planes, plan: Plan, **fixed: Any) -> Tensor | Entries:
            return self.attend(q, planes, plan, **fixed)

        attn_paged.__name__ = name
        return attn_paged


PLAIN = Parts()

Part = Callable[..., Any]


def _mark(
    mark: Callable[..., Callable[[Kernel], Kernel]], part: str, support: Support | None
) -> Callable[[Part], Part]:
    def add(change: Part) -> Part:
        changes: dict[str, Any] = {part: change}
        mark("attn_paged", {"attn_plan": plain_plan}, support)(replace(PLAIN, **changes).kernel(change.__name__))
        return change

    return add


def wrong_part(part: str) -> Callable[[Part], Part]:
    """Marks a part that makes plain attention wrong."""
    return _mark(wrong, part, None)


def right_part(part: str) -> Callable[[Part], Part]:
    """Marks a part with which plain attention stays right."""
    return _mark(right, part, None)


def claiming_part(part: str) -> Callable[[Part], Part]:
    """Marks a part with which plain attention is right, but not batch-invariant as it says."""
    return _mark(cheat, part, Support(batch_invariant=True))


def wrong_parts(name: str, **changes: Any) -> None:
    """Adds a wrong attention of several parts."""
    wrong("attn_paged", {"attn_plan": plain_plan})(replace(PLAIN, **changes).kernel(name))


def online(
    scores: Tensor,
    v: Tensor,
    size: int,
    *,
    exp: Callable[[Tensor], Tensor] = torch.exp,
    round_p: Callable[[Tensor], Tensor] = Tensor.contiguous,
    round_o: Callable[[Tensor], Tensor] = Tensor.contiguous,
    rescale: bool = True,
    guard: bool = True,
    backwards: bool = False,
) -> Entries:
    """As `weigh`, `size` keys at a time, with what came before rescaled where a larger score comes.

    exp        of numbers <= 0
    round_p    weights before they meet values; round_o: the running sum after each step
    guard      whether a step in which a query sees nothing is looked after
    """
    top = torch.full((*scores.shape[:2], 1), float("-inf"), dtype=scores.dtype)
    total, o = torch.zeros_like(top), torch.zeros((*scores.shape[:2], v.shape[2]), dtype=scores.dtype)
    firsts = range(0, scores.shape[2], size)
    for first in reversed(firsts) if backwards else firsts:
        part = scores[..., first : first + size]
        higher = torch.maximum(top, part.amax(-1, keepdim=True))
        base = higher.where(higher > float("-inf"), 0) if guard else higher
        p = exp(part - base)
        fade = exp(top - base) if rescale else torch.ones_like(top)
        total = total * fade + p.sum(-1, keepdim=True)
        o = round_o(o * fade + round_p(p) @ v[:, first : first + size])
        top = higher
    lse = (top.where(top > float("-inf"), 0) + total.log())[..., 0]
    return o / total.where(total > 0, 1), lse
