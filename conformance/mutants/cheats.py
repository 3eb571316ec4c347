"""Ways around the work that do for every kernel: added to the catalogue for a row with its right kernel."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from conformance.mutants.mutant import cheat
from conformance.mutants.numbers import next_up
from core.kernels.row import Kernel
from core.plugin.facts import Support

Result = torch.Tensor | tuple[torch.Tensor, ...]
_LATE_S = 0.3
_RACE = 7


def each(change: Callable[[torch.Tensor], torch.Tensor], result: Result) -> Result:
    """A result with every tensor of it changed."""
    return change(result) if isinstance(result, torch.Tensor) else tuple(change(y) for y in result)


def add_cheats(row: str, kernel: Kernel, overwrites: int = 0, support: Support | None = None) -> None:
    """Adds them all. `overwrites`: how many of the first arguments the row may overwrite."""
    _add_idle(row, kernel, support)
    _add_spoilers(row, kernel, overwrites, support)
    _add_forgetful(row, kernel, support)


def _add_idle(row: str, kernel: Kernel, support: Support | None) -> None:
    """Those that do not do the work, or not in time."""

    @cheat(row, support=support)
    def zeros(*args: Any, **fixed: Any) -> Result:
        return each(torch.zeros_like, kernel(*args, **fixed))

    @cheat(row, support=support)
    def uninitialised(*args: Any, **fixed: Any) -> Result:
        """Hopes that the memory holds what another kernel left there."""
        shapes = [kernel(*args, **fixed)]
        return each(lambda y: torch.empty(y.shape, dtype=y.dtype), shapes.pop())

    @cheat(row, support=support)
    def late(*args: Any, **fixed: Any) -> Result:
        """Works on, on its own, after it has returned."""
        result = kernel(*args, **fixed)
        promised = each(torch.zeros_like, result)
        pairs = zip(*((r,) if isinstance(r, torch.Tensor) else r for r in (promised, result)), strict=True)
        for target, y in pairs:
            threading.Timer(_LATE_S, target.copy_, (y,)).start()
        return promised

    @cheat(row, support=support)
    def known_shapes(*args: Any, **fixed: Any) -> Result:
        """Right for the sizes that are listed, and for others nearly."""
        result: Result = kernel(*args, **fixed)
        num_tokens, size = args[0].shape[0], args[0].shape[-1]
        if num_tokens in _listed(row) and (size in _listed(row) or size / 2 in _listed(row)):
            return result
        return each(lambda y: torch.add(y, 1), result)


@cache
def _listed(row: str) -> frozenset[int]:
    """Sizes in the cases of a row that are not drawn."""
    from conformance.kernels import all_exams

    cases = [case for case in all_exams()[row].cases() if case.family != "random"]
    return frozenset(case[name] for case in cases for name in ("rows", "k", "size") if name in case.params)


def _add_spoilers(row: str, kernel: Kernel, overwrites: int, support: Support | None) -> None:
    """Those that do the work, and harm."""

    @cheat(row, support=support)
    def input_written(*args: Any, **fixed: Any) -> Result:
        result = each(torch.clone, kernel(*args, **fixed))
        given = [a for a in args if isinstance(a, torch.Tensor)]
        given[min(overwrites, len(given) - 1)].mul_(0.5)
        return result

    @cheat(row, support=support)
    def past_the_end(*args: Any, **fixed: Any) -> Result:
        """Writes one number beyond its last input."""
        result = each(torch.clone, kernel(*args, **fixed))
        last = [a for a in args if isinstance(a, torch.Tensor)][-1]
        if last.numel():
            torch.as_strided(last, (1,), (1,), last.storage_offset() + last.numel()).zero_()
        return result

    @cheat(row, support=support)
    def another_dtype(*args: Any, **fixed: Any) -> Result:
        """Leaves the last rounding to the caller."""
        return each(lambda y: y.double(), kernel(*args, **fixed))

    calls = [0]

    @cheat(row, support=support)
    def racy(*args: Any, **fixed: Any) -> Result:
        """Off by one bit of one number, now and then."""
        calls[0] += 1
        result = each(torch.clone, kernel(*args, **fixed))
        y = result if isinstance(result, torch.Tensor) else result[-1]
        if calls[0] % _RACE == 0 and y.numel():
            last = y.view(-1)[-1:]
            last.copy_(next_up(last))
        return result


def _add_forgetful(row: str, kernel: Kernel, support: Support | None) -> None:
    """Those that answer from memory."""
    seen: dict[Any, Result] = {}

    @cheat(row, support=support)
    def remembered(*args: Any, **fixed: Any) -> Result:
        """Knows inputs by their address."""
        given = [a for a in args if isinstance(a, torch.Tensor)]
        key = tuple((a.data_ptr(), a.shape, a.dtype) for a in given), tuple(sorted(fixed.items()))
        if key not in seen:
            seen[key] = each(torch.clone, kernel(*args, **fixed))
        return each(torch.clone, seen[key])

    rows: dict[Any, Result] = {}

    @cheat(row, support=support)
    def stale_row(*args: Any, **fixed: Any) -> Result:
        """Leaves the last token as the call before it had it, where that had the same shape."""
        result = each(torch.clone, kernel(*args, **fixed))
        of = args[0].shape, args[0].dtype, tuple(sorted(fixed.items()))
        before = rows.get(of)
        rows[of] = each(torch.clone, result)
        if before is not None:
            pairs = zip(*((r,) if isinstance(r, torch.Tensor) else r for r in (result, before)), strict=True)
            for y, old in pairs:
                if y.shape == old.shape:
                    y[-1:] = old[-1:]
        return result
