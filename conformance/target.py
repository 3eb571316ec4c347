"""The device under examination: opened once, with its kernels; and a bench to lay out one case on it.

Every tensor handed to a kernel lies between canaries. What a row says it neither mutates nor overwrites must be
unchanged afterwards (check E).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from conformance.case import Finding
from conformance.judge import same_bits
from core.errors import ConfigError, PluginError
from core.kernels.bind import REFERENCE, KernelSet
from core.kernels.dtypes import TORCH_DTYPES
from core.kernels.reference.kv import KVLayout, Planes
from core.kernels.row import Group, Implementation, Kernel
from core.kernels.table import KV_BUNDLE, TABLE
from core.plugin import loader
from core.plugin.device import Device
from core.plugin.facts import DeviceFacts, Memory, Need
from core.plugin.opened import open_device

MARGIN_BYTES = 512
_Results = list[tuple[torch.Tensor, torch.Tensor]]
"""On the device, and as fetched."""

METHODS = ("h2d", "d2h")
"""Of the device itself: examined as rows are, though the table has none of that name."""


@dataclass(frozen=True)
class Target:
    """A device with its kernels; and what of torch it replaces, which is allowed and shown."""

    device: Device
    where: torch.device
    facts: DeviceFacts
    implementations: tuple[Implementation, ...]
    replaced: tuple[str, ...] = ()

    def providers(self, row: str) -> list[str]:
        """Who supplies a row, best first; of the KV bundle, who supplies the layout. The reference, if nobody does."""
        if row in METHODS:
            return [self.facts.name]
        named = "kv_layout" if TABLE[row].bundle == "kv" else row
        found = dict.fromkeys(i.provider for i in self.implementations if i.row == named)
        return list(found) or [REFERENCE]

    def kernels(self, row: str, provider: str, need: Need) -> KernelSet:
        """Kernels with this provider's for `row`. Raises: ConfigError when it refuses the need, with the reason."""
        if row in METHODS:
            return KernelSet(self.implementations, {}, need)
        rows = KV_BUNDLE if TABLE[row].bundle == "kv" else (TABLE[row].reader or row,)
        has = {i.row for i in self.implementations if i.provider == provider}
        overrides = {name: provider for name in rows if provider == REFERENCE or name in has}
        return KernelSet(self.implementations, overrides, need)

    def refusal(self, row: str, provider: str, need: Need) -> str | None:
        """Why a case with this need is not supported; None when it is. Known before anything runs."""
        if need.dtype is not None and need.dtype not in self.facts.dtypes:
            return f"dtype {need.dtype} is not among {', '.join(self.facts.dtypes)}"
        if row in METHODS:
            return None
        try:
            self.kernels(row, provider, need).bind(row, need)
        except (ConfigError, PluginError) as error:
            return str(error)
        return None


def open_target(name: str, index: int = 0) -> Target:
    """Open the device that `--device` means. Raises: ConfigError, PluginError, DeviceError."""
    opened = open_device(loader.choose(loader.discover(), name), index)
    return Target(opened.device, opened.where, opened.facts, opened.implementations, opened.replaced)


class Host(Device):
    """Plain host memory: where our own eager kernels run, and wrong kernels to try the checks on."""

    def probe(self) -> DeviceFacts:
        dtypes = ("float32", "bfloat16", "float16")
        return DeviceFacts("host", "cpu", "", 1, 0, dtypes, host_memory=True, accelerator=False, implicit=False)

    def open(self, index: int) -> torch.device:
        return torch.device("cpu")

    def memory(self) -> Memory:
        return Memory(0, 0)

    def synchronize(self) -> None:
        """Nothing is ever under way."""


def host_target(*implementations: Implementation, device: Host | None = None) -> Target:
    """The host with these kernels; without any, with the references: our own eager kernels."""
    device = device or Host()
    return Target(device, device.open(0), device.probe(), implementations)


@dataclass
class _Guarded:
    """A tensor in the middle of a larger one."""

    name: str
    whole: torch.Tensor
    inner: torch.Tensor
    before: torch.Tensor | None  # what was written, on the host; None: it may change


class Bench:
    """One case laid out on a target: binds kernels, holds tensors, and looks after their memory."""

    def __init__(self, target: Target, row: str, provider: str, need: Need) -> None:
        self.target = target
        self.asked = provider  # by name, for other processes that take part
        self.elsewhere: list[Finding] = []  # of check E, by those that took part in the last call
        self._need = need
        self._row = row
        self._kernels = target.kernels(row, provider, need)
        self._guarded: dict[str, _Guarded] = {}
        self._results: _Results | None = [] if _has_results(row) else None  # of this call; None: not looked at
        self._before: _Results = []

    def bind(self, row: str, **fixed: Any) -> Kernel:
        return self._kernels.bind(row, self._need, **fixed)

    @property
    def provider(self) -> str:
        """Whose kernel the binder recorded for the row of the case."""
        if self._row in METHODS:
            return self.target.facts.name
        return next((b.provider for b in self._kernels.bindings() if b.row == self._row), "")

    def put(self, name: str, x: torch.Tensor, *, may_change: bool = False) -> torch.Tensor:
        """A copy on the device, between canaries. The same name, shape and dtype get the same memory again."""
        known = self._lay(name, x)
        known.before = None if may_change else x.clone()
        return known.inner

    def _lay(self, name: str, x: torch.Tensor) -> _Guarded:
        known = self._guarded.get(name)
        if known is None or known.inner.shape != x.shape or known.inner.dtype != x.dtype:
            margin = MARGIN_BYTES // x.element_size()
            whole = self._fill(torch.full((x.numel() + 2 * margin,), _canary(x.dtype), dtype=x.dtype))
            inner = whole[margin : margin + x.numel()].view(x.shape)
            known = self._guarded[name] = _Guarded(name, whole, inner, None)
        event = self.target.device.h2d(known.inner, x.contiguous())
        event.wait()
        event.synchronize()
        return known

    def planes(self, layout: KVLayout, num_pages: int, name: str = "plane") -> Planes:
        """A layer's pool between canaries, full of NaN, or of the largest integers. What is in it may change.

        The same name and shapes get the same memory again.
        """
        made = []
        for i, (plane, shape) in enumerate(zip(layout.planes, layout.shapes(num_pages), strict=True)):
            dtype = TORCH_DTYPES[plane.dtype]
            made.append(self._lay(f"{name}{i}", torch.full(shape, _poison(dtype), dtype=dtype)).inner)
        return tuple(made)

    def _fill(self, host: torch.Tensor) -> torch.Tensor:
        there = self.target.device.empty(tuple(host.shape), host.dtype, self.target.where)
        event = self.target.device.h2d(there, host)
        event.wait()
        event.synchronize()
        return there

    def get(self, x: torch.Tensor) -> torch.Tensor:
        """A result on the host, as it is once all launched work is done."""
        host = self._fetch(x)
        if self._results is not None:
            self._results.append((x, host))
        return host

    def _fetch(self, x: torch.Tensor) -> torch.Tensor:
        self.target.device.synchronize()
        host = self.target.device.host_empty(tuple(x.shape), x.dtype)
        self.target.device.d2h(host, x).synchronize()
        return host

    def check_memory(self, may_change: Sequence[str] = ()) -> list[Finding]:
        """Check E: canaries stand, inputs not in `may_change` are as they were, and results of the call before too."""
        found = [*self.elsewhere, *self._check_results()]
        for g in self._guarded.values():
            margin = MARGIN_BYTES // g.inner.element_size()
            whole = self._fetch(g.whole)
            edges = torch.cat((whole[:margin], whole[len(whole) - margin :]))
            canary = torch.full_like(edges, _canary(edges.dtype))
            found.append(same_bits(f"memory around {g.name}", canary, edges, "E"))
            if g.before is not None and g.name not in may_change:
                inner = whole[margin : margin + math.prod(g.inner.shape)].view(g.inner.shape)
                found.append(same_bits(f"input {g.name}", g.before, inner, "E"))
        return found

    def _check_results(self) -> list[Finding]:
        """Results outlive the next call: of the first two calls, those of one are there after the other."""
        if self._results is None:
            return []
        before, self._before = self._before, self._results
        self._results = None if before else []
        return [same_bits("result of the call before", host, self._fetch(x), "E") for x, host in before]


def _has_results(row: str) -> bool:
    """Whether what is fetched is what the row gave, in memory of its own, and no input that was written to."""
    known = TABLE.get(row)
    if known is None or known.group in (Group.COPY, Group.COMM):
        return False
    return not (known.mutates or known.overwrites or known.bundle)


def _canary(dtype: torch.dtype) -> float:
    """Large, so that a sum with it shows; finite, so that a product with 0 stays as it is."""
    if dtype.is_floating_point:
        return torch.finfo(dtype).max / 4
    return 1 if dtype == torch.bool else torch.iinfo(dtype).max


def _poison(dtype: torch.dtype) -> float:
    return float("nan") if dtype.is_floating_point else torch.iinfo(dtype).max
