"""Attention as families compose it: positions, norms of heads, and what is read from the cache.

How queries and keys are turned before they meet is a part of its own (`Turn`), and so are the projections around: a
family picks them. Legend as in `core.model.layers`, and F: dimensions of a head that are turned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from core.kv.groups import KVGroup
from core.model.layers import Builder, Layer, Param, Planes, RMSNorm, Weights

if TYPE_CHECKING:  # families are looked up in processes that never load torch
    import torch


class RopeTable:
    """The cosines and sines of a step's positions, once per step; layers then turn their heads with them."""

    def __init__(self, b: Builder, name: str, table: Callable[[], torch.Tensor], size: int) -> None:
        self.table = b.param(Param(name, (b.max_len, size), make=table))
        self._rows = b.kernels.bind("gather_rows", b.need())

    def __call__(self, w: Weights, positions_T: torch.Tensor) -> torch.Tensor:
        cos_sin_TF: torch.Tensor = self._rows(w[self.table], positions_T)
        return cos_sin_TF


class Turn(Protocol):
    """What happens to queries and keys before attention: qk_THD holds `num_heads` query heads, then key heads."""

    def __call__(
        self, w: Weights, qk_THD: torch.Tensor, num_heads: int, cos_sin_TF: torch.Tensor, /
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


class Rotary:
    """Turns queries and keys by their positions. `size` dimensions of a head are turned."""

    def __init__(self, b: Builder, size: int) -> None:
        self._rope = b.kernels.bind("rope", b.need(head_size=size))

    def __call__(
        self, w: Weights, qk_THD: torch.Tensor, num_heads: int, cos_sin_TF: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        qk_THD = self._rope(qk_THD, cos_sin_TF)
        return qk_THD[:, :num_heads], qk_THD[:, num_heads:]


class NormedRotary:
    """Norms each head of queries and keys, then turns them."""

    def __init__(self, b: Builder, size: int, q_norm: RMSNorm, k_norm: RMSNorm) -> None:
        self._rope = b.kernels.bind("rope", b.need(head_size=size))
        self._q_norm, self._k_norm = q_norm, k_norm

    def __call__(
        self, w: Weights, qk_THD: torch.Tensor, num_heads: int, cos_sin_TF: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        q_THD = self._q_norm(w, qk_THD[:, :num_heads])
        k_THD = self._k_norm(w, qk_THD[:, num_heads:])
        return self._rope(q_THD, cos_sin_TF), self._rope(k_THD, cos_sin_TF)


class Unturned:
    """Leaves queries and keys as they are: a layer that does not see positions."""

    def __call__(
        self, w: Weights, qk_THD: torch.Tensor, num_heads: int, cos_sin_TF: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return qk_THD[:, :num_heads], qk_THD[:, num_heads:]


class Attention:
    """Queries over what the sequence has cached, the step's own tokens included.

    qkv    E -> (H + 2 Hkv) * D: heads of queries, then of keys, then of values
    turn   what happens to queries and keys before they meet
    out    H * D -> E
    """

    def __init__(
        self, b: Builder, group: KVGroup, num_heads: int, *, qkv: Layer, turn: Turn, out: Layer, scale: float
    ) -> None:
        self.size = group.head_size
        self.heads, self.kv_heads = b.split(num_heads), b.split(group.num_kv_heads)
        self.qkv, self.turn, self.out = qkv, turn, out
        need = b.need(head_size=self.size, page_tokens=b.page_tokens)
        self._write = b.kernels.bind("kv_write", need, page_tokens=b.page_tokens)
        self._attend = b.kernels.bind(
            "attn_paged",
            need,
            scale=scale,
            page_tokens=b.page_tokens,
            window=group.retain,
            softcap=None,
            want_lse=False,
        )

    def __call__(
        self,
        w: Weights,
        x_TE: torch.Tensor,
        cos_sin_TF: torch.Tensor,
        slots_T: torch.Tensor,
        plan: Any,
        planes: Planes,
    ) -> tuple[torch.Tensor, Planes]:
        T, H, K = x_TE.shape[0], self.heads, self.kv_heads
        qkv_THD = self.qkv(w, x_TE).view(T, H + 2 * K, self.size)
        q_THD, k_THD = self.turn(w, qkv_THD[:, : H + K], H, cos_sin_TF)
        planes = self._write(k_THD, qkv_THD[:, H + K :], planes, slots_T)
        o_THD = self._attend(q_THD, planes, plan)
        return self.out(w, o_THD.view(T, H * self.size)), planes
