"""Kernels that are wrong on purpose, and right ones that compute otherwise than ours: what the checks are tried on.

A new one is one function in a file of this folder, marked with `wrong`, `cheat` or `right`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from conformance.target import METHODS, Host, Target, host_target
from core.kernels.reference import kv
from core.kernels.row import Implementation, Kernel
from core.kernels.table import TABLE
from core.plugin.facts import Support

PROVIDER = "mutant"
_BESIDE: dict[str, Kernel] = {"kv_layout": kv.kv_layout, "kv_write": kv.kv_write, "kv_gather": kv.kv_gather}


@dataclass(frozen=True)
class Mutant:
    """One kernel to try the checks on.

    kind      "wrong": computes something else, and two independent checks must find out
              "cheat": does not do its work, or spoils that of others; one check must find out
              "right": must pass every check
    more      kernels of other rows that come with it, such as the plan that an attention kernel reads
    support   what it says it takes
    """

    row: str
    name: str
    kind: str
    kernel: Kernel
    more: tuple[tuple[str, Kernel], ...] = ()
    support: Support = field(default_factory=Support)

    def target(self) -> Target:
        """The host with this kernel, or with this method of its device; everything else is our own."""
        if self.row in METHODS:
            device = Host()
            setattr(device, self.row, self.kernel)
            return host_target(device=device)
        kernels = {**(_BESIDE if TABLE[self.row].bundle == "kv" else {}), **dict(self.more), self.row: self.kernel}
        return host_target(*(Implementation(row, kernel, PROVIDER, self.support) for row, kernel in kernels.items()))


CATALOGUE: list[Mutant] = []


def _mark(kind: str, row: str, more: dict[str, Kernel] | None, support: Support | None) -> Callable[[Kernel], Kernel]:
    def add(kernel: Kernel) -> Kernel:
        name = kernel.__name__.removeprefix(f"{row}_")
        assert not any((m.row, m.name) == (row, name) for m in CATALOGUE), (row, name)
        CATALOGUE.append(Mutant(row, name, kind, kernel, tuple((more or {}).items()), support or Support()))
        return kernel

    return add


def wrong(
    row: str, more: dict[str, Kernel] | None = None, support: Support | None = None
) -> Callable[[Kernel], Kernel]:
    """Marks a kernel of `row` that computes something else."""
    return _mark("wrong", row, more, support)


def cheat(
    row: str, more: dict[str, Kernel] | None = None, support: Support | None = None
) -> Callable[[Kernel], Kernel]:
    """Marks a kernel of `row` that gets around its work."""
    return _mark("cheat", row, more, support)


def right(
    row: str, more: dict[str, Kernel] | None = None, support: Support | None = None
) -> Callable[[Kernel], Kernel]:
    """Marks a kernel of `row` that is correct, in another way than ours."""
    return _mark("right", row, more, support)
