"""What a row of the kernel table holds, and what a plugin's implementation of one is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from core.plugin.facts import Support

Kernel = Callable[..., Any]


class Group(Enum):
    """What plugins supply: the first four need hardware knowledge most."""

    ATTENTION = "attention"
    GATHER = "gather"
    COMM = "comm"
    COPY = "copy"
    DENSE = "dense"
    SAMPLING = "sampling"


@dataclass(frozen=True)
class Row:
    """One kernel.

    shapes       arguments -> results; after `|` what is fixed at build or by the shape of the step
    reference    torch semantics
    rounding     where results are rounded to the activation dtype, beyond the final store
    tolerance    class of the error bound in conformance
    mutates      arguments written in place (and returned)
    overwrites   arguments whose content may be destroyed
    production   must be native for the production certificate
    parts        rows this one is composed of: handed to the reference as keyword arguments, bound
    bundle       rows of one bundle come from one provider
    reader       row that alone reads the result: whoever provides that one provides this one
    batch_invariant   the reference's bits for a token depend on that token's sequence alone
    """

    name: str
    group: Group
    shapes: str
    reference: Kernel
    rounding: str = ""
    tolerance: str = "exact"
    mutates: tuple[str, ...] = ()
    overwrites: tuple[str, ...] = ()
    production: bool = False
    parts: tuple[str, ...] = ()
    bundle: str | None = None
    reader: str | None = None
    batch_invariant: bool = True


@dataclass(frozen=True)
class Implementation:
    """A plugin's own version of a row.

    A result stays as it is while somebody holds it: it is never a buffer that the next call writes. The same inputs
    give the same bits.

    adopted   it is the reference, compiled for the device
    """

    row: str
    kernel: Kernel
    provider: str
    support: Support = field(default_factory=Support)
    adopted: bool = False
