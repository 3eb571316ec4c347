"""KV pools that are laid out otherwise than ours, and right: layout, writing and gathering of one provider each.

Legend as in core.kernels.reference.kv.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from core.kernels.dtypes import TORCH_DTYPES
from core.kernels.reference.kv import KVLayout, Plane, Planes
from core.kernels.row import Kernel

Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Form:
    """Planes of the model's dtype.

    shape   of a plane, from heads, head size and page tokens, with 0 for pages
    view    keys and values, each as [P, page, H, D]
    """

    name: str
    shape: Callable[[int, int, int], tuple[int, ...]]
    page_axis: int
    num_planes: int
    view: Callable[[Planes], Pair]

    def layout(self, *, num_kv_heads: int, head_size: int, page_tokens: int, dtype: str) -> KVLayout:
        plane = Plane(dtype, self.shape(num_kv_heads, head_size, page_tokens), self.page_axis)
        num_bytes = 2 * page_tokens * num_kv_heads * head_size * TORCH_DTYPES[dtype].itemsize
        return KVLayout((plane,) * self.num_planes, num_bytes, f"{self.name}-{dtype}")

    def write(
        self, k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
    ) -> Planes:
        rows = slots.clamp(min=0).long()
        for plane, x in zip(self.view(planes), (k, v), strict=True):
            plane[rows // page_tokens, rows % page_tokens] = x
        return planes

    def gather(self, planes: Planes, pages: torch.Tensor) -> Pair:
        k, v = self.view(planes)
        return k[pages.long()], v[pages.long()]

    @property
    def rows(self) -> dict[str, Kernel]:
        return {"kv_layout": self.layout, "kv_write": self.write, "kv_gather": self.gather}


HEADS_FIRST = Form(
    "heads-first", lambda h, d, p: (h, 0, p, d), 1, 2, lambda ps: (ps[0].permute(1, 2, 0, 3), ps[1].permute(1, 2, 0, 3))
)
PAGES_LAST = Form(
    "pages-last", lambda h, d, p: (p, h, d, 0), 3, 2, lambda ps: (ps[0].permute(3, 0, 1, 2), ps[1].permute(3, 0, 1, 2))
)
ONE_PLANE = Form("one-plane", lambda h, d, p: (2, 0, p, h, d), 1, 1, lambda ps: (ps[0][0], ps[0][1]))
INTERLEAVED = Form("interleaved", lambda h, d, p: (0, p, h, d, 2), 0, 1, lambda ps: (ps[0][..., 0], ps[0][..., 1]))
IN_A_PAGE = Form("in-a-page", lambda h, d, p: (0, 2, h, p, d), 0, 1, lambda ps: _halves(ps[0]))
DIMENSIONS_FIRST = Form(
    "dimensions-first",
    lambda h, d, p: (0, h, d, p),
    0,
    2,
    lambda ps: (ps[0].permute(0, 3, 1, 2), ps[1].permute(0, 3, 1, 2)),
)


def _halves(plane: torch.Tensor) -> Pair:
    return plane[:, 0].transpose(1, 2), plane[:, 1].transpose(1, 2)


FORMS = (HEADS_FIRST, PAGES_LAST, ONE_PLANE, INTERLEAVED, IN_A_PAGE, DIMENSIONS_FIRST)


@dataclass
class Codes:
    """Planes of int8 codes [K or V, P, page, H, D] and of float32 scales, one for each token and head.

    error       that the layout declares
    most        greatest code
    per_token   one scale for all heads of a token, though the layout has a place for each
    per_call    one scale for all tokens of a call
    """

    error: float = (1 + 2**-12) / 254
    most: int = 127
    per_token: bool = False
    per_call: bool = False
    truncated: bool = False
    dtype: torch.dtype = torch.float32  # of what was written last

    def layout(self, *, num_kv_heads: int, head_size: int, page_tokens: int, dtype: str) -> KVLayout:
        codes = Plane("int8", (2, 0, page_tokens, num_kv_heads, head_size), 1)
        scales = Plane("float32", (2, 0, page_tokens, num_kv_heads), 1)
        num_bytes = 2 * page_tokens * num_kv_heads * (head_size + 4)
        return KVLayout((codes, scales), num_bytes, f"codes-{dtype}", kv_error=self.error)

    def write(
        self, k: torch.Tensor, v: torch.Tensor, planes: Planes, slots: torch.Tensor, *, page_tokens: int
    ) -> Planes:
        self.dtype = k.dtype
        rows = slots.clamp(min=0).long()
        for which, x in enumerate((k.float(), v.float())):
            scale = self._scale(x)
            at = rows // page_tokens, rows % page_tokens
            code = x / scale[..., None]
            planes[0][which][at] = (code.trunc() if self.truncated else code.round()).to(torch.int8)
            planes[1][which][at] = scale
        return planes

    def _scale(self, x: torch.Tensor) -> torch.Tensor:
        most = x.abs().amax(-1)
        if self.per_token and len(x):
            most = most.amax(-1, keepdim=True).expand(x.shape[:2])
        if self.per_call and len(x):
            most = most.amax().expand(x.shape[:2])
        return most.clamp(min=2**-126) / self.most

    def gather(self, planes: Planes, pages: torch.Tensor) -> Pair:
        most = torch.finfo(self.dtype).max
        k, v = (
            (codes[pages.long()] * scales[pages.long()][..., None]).clamp(-most, most).to(self.dtype)
            for codes, scales in zip(*planes, strict=True)
        )
        return k, v

    @property
    def rows(self) -> dict[str, Kernel]:
        return {"kv_layout": self.layout, "kv_write": self.write, "kv_gather": self.gather}
