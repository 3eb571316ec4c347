"""The reference beside a device's kernels: the same call, with copies of the same inputs, on the host.

Products need the weights as they were before packing, attention the entries as the device's own `kv_gather` gives them
back. A plan of attention is judged by the attention that reads it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from conformance.engine.apart import Apart, apart, stored_apart
from core.kernels.bind import KernelSet
from core.kernels.row import Group, Kernel
from core.kernels.table import TABLE
from core.plugin.facts import Need

_IN_FLOAT64 = (Group.ATTENTION, Group.DENSE)
_UNJUDGED = ("kv_layout", "kv_gather", "pack_weight", "attn_plan")


def on_host(x: Any) -> Any:
    """Copies on the host of all tensors in x."""
    if isinstance(x, torch.Tensor):
        return x.detach().cpu().clone()
    return tuple(map(on_host, x)) if isinstance(x, tuple) else x


def _wide(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def fixed(row: str, kernel: Kernel, late: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a call of a bound kernel that the reference takes, its parts excepted."""
    known = set(inspect.signature(TABLE[row].reference).parameters) - {*TABLE[row].parts, "host"}
    keywords = {**(kernel.keywords if isinstance(kernel, partial) else {}), **late}
    return {name: value for name, value in keywords.items() if name in known}


class Beside:
    """References of one engine's calls.

    gather     the device's `kv_gather`
    kv_error   that its layout declares
    """

    def __init__(self) -> None:
        self.gather: Kernel
        self.kv_error = 0.0
        self._ours = KernelSet([], {}, Need())
        self._weights: dict[int, tuple[Any, torch.Tensor]] = {}  # id of a handle -> the handle, kept; its weight
        self._plans: dict[int, tuple[Any, Any, dict[str, Any]]] = {}  # likewise; arguments and keywords

    def packed(self, handle: Any, weight: torch.Tensor) -> None:
        """Remember what `pack_weight` made a handle of."""
        self._weights[id(handle)] = handle, weight

    def planned(self, plan: Any, args: Any, keywords: dict[str, Any]) -> None:
        """Remember what `attn_plan` made a plan of; those of the step before are forgotten."""
        if len(self._plans) >= 8:
            self._plans.clear()
        self._plans[id(plan)] = plan, args, keywords

    def judges(self, row: str) -> bool:
        return row not in _UNJUDGED and TABLE[row].group not in (Group.COMM, Group.COPY)

    def compare(self, row: str, given: Any, keywords: dict[str, Any], result: Any) -> Apart:
        """A result beside the reference's. `given` are the arguments: of rows outside of the KV bundle, as before."""
        if row == "kv_write":
            return self._written(*given, **keywords)
        found = on_host(result)
        if row == "attn_paged":
            return apart(found, *(self._attention(wide, *given, **keywords) for wide in (True, False)))
        if row == "linear":
            given = (given[0], self._weights[id(given[1])][1], *given[2:])
        reference = self._ours.bind(row, **keywords)
        exact = reference(*map(_wide, given)) if TABLE[row].group in _IN_FLOAT64 else reference(*on_host(given))
        ours = reference(*on_host(given))
        if row == "put_ids":  # row 0 holds anything
            found, exact, ours = found[1:], exact[1:], ours[1:]
        return apart(found, exact, ours)

    def _attention(self, wide: bool, q: torch.Tensor, planes: Any, plan: Any, **keywords: Any) -> Any:
        _, args, planned = self._plans[id(plan)]

        def gather(planes: Any, pages: torch.Tensor) -> Any:
            entries = on_host(tuple(self.gather(planes, pages.to(q.device, torch.int32))))
            return tuple(map(_wide, entries)) if wide else entries

        own_plan = self._ours.bind("attn_plan", **planned)(*args)
        query = on_host(q)
        return TABLE["attn_paged"].reference(
            _wide(query) if wide else query, planes, own_plan, **keywords, kv_gather=gather
        )

    def _written(
        self, k: torch.Tensor, v: torch.Tensor, planes: Any, slots: torch.Tensor, *, page_tokens: int
    ) -> Apart:
        """What comes back of the entries that were written."""
        slots_T = slots.cpu().long()
        kept = slots_T >= 0
        pages = (slots_T[kept] // page_tokens).to(torch.int32)
        rows = torch.arange(len(pages)), slots_T[kept] % page_tokens
        back = on_host(tuple(self.gather(planes, pages.to(slots.device))))
        each = [stored_apart(b[rows], on_host(x)[kept], self.kv_error) for b, x in zip(back, (k, v), strict=True)]
        return max(each, key=lambda a: a.ratio)
