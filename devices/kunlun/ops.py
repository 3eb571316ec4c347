"""Calls of the vendor's ops by name, with their return codes looked at: kernels that ignore them compute on garbage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from core.errors import DeviceError
from devices.kunlun import limits
from devices.kunlun.vendor import OPS

_CACHE = "caches without gaps, of int8"
_TAKES: Mapping[str, str] = {
    "matmul": f"at most {limits.MAX_N} columns, and tensors without gaps of one dtype",
    "prefill_attention": f"at most {limits.MAX_SEQS} sequences of {limits.MAX_CONTEXT} tokens, {_CACHE}, "
    f"and head sizes {', '.join(map(str, sorted(limits.HEAD_SIZES)))}",
    "reshape_and_cache": _CACHE,
    "swap_blocks": "pools without gaps, and pairs of blocks on the host",
}
_OTHERS = f"tensors without gaps of {', '.join(limits.DTYPES)}"


@dataclass(frozen=True)
class Ops:
    """The vendor's module, or its stand-in."""

    module: Any

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Calls the op of this name. It raises DeviceError when the op refuses, with what it was given and takes."""
        op = getattr(self.module, name)

        def call(*args: Any, **named: Any) -> None:
            code = op(*args, **named)
            if code:  # ops that answer nothing have nothing to refuse with
                given = ", ".join(_told(x) for x in (*args, *named.values()) if isinstance(x, torch.Tensor))
                takes = _TAKES.get(name, _OTHERS)
                raise DeviceError(f"{OPS}.{name} refused with code {code}: it was given {given}, and takes {takes}")

        return call


def _told(x: torch.Tensor) -> str:
    gaps = "" if x.is_contiguous() else " with gaps"
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}{gaps}"
