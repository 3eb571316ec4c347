"""How the stand-in's ops reach the simulator, and what they refuse alike.

Which pages of a pool an op touches, only the device knows: slots and block tables lie there. While pages are swapped
beside the steps, the whole pool would be too much to declare: `pages` looks at the numbers when an op is launched. The
host does not count as having waited for them. What a graph declares is what it touched when it was captured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from devices.kunlun import sim

OK, REFUSED = 0, 1
FLOATS = (torch.bfloat16, torch.float16, torch.float32)


def fits(kind: torch.dtype | tuple[torch.dtype, ...], *tensors: torch.Tensor | None) -> bool:
    """Whether all are of (one of) these dtypes, and have no gaps: the ops index memory flat."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return all(x is None or (x.dtype in kinds and x.is_contiguous()) for x in tensors)


def launch(name: str, fn: Callable[..., None], reads: Sequence[Any], writes: Sequence[Any], flops: float = 0.0) -> int:
    """Run `fn` on what is read, then on what is written, in stream order. What it touches crosses memory once.

    An entry is a tensor, or a tensor and the rows of it that are touched.
    """
    num_bytes = sum(_num_bytes(x) for x in (*reads, *writes))
    sim.launch(fn, reads=list(reads), writes=list(writes), flops=flops, nbytes=num_bytes, name=name)
    return OK


def _num_bytes(entry: Any) -> int:
    x, rows = entry if isinstance(entry, tuple) else (entry, None)
    size = int(x.numel() * x.element_size())
    return size if rows is None else size // len(x) * len(rows)


class Declared:
    """Whether ops declare pages, not pools: from the first swap or graph of this process on."""

    by_page = False


def pages(pool: torch.Tensor, numbers: torch.Tensor, per_page: int = 1) -> Any:
    """The pool, with those of its pages that `numbers` on the device, divided by `per_page`, name; -1 names none."""
    if not Declared.by_page:
        return pool
    seen = _peek(numbers)
    return pool, torch.unique(seen[seen >= 0] // per_page).tolist()


def _peek(x: torch.Tensor) -> torch.Tensor:
    """What x will hold where the stream is now: runs what was launched before, and waits for nothing."""
    found: list[torch.Tensor] = []
    sim.launch(lambda there: found.append(there.clone()), reads=[x], writes=[], seconds=0.0, name="peek")
    stream = torch.accelerator.current_stream(x.device.index)
    while not found:
        stream.query()
    return found[0]
