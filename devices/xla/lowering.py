"""The ways to a device of XLA's: through torchax and jax, or through torch_xla. What is installed decides.

All that differs between them is a `Lowering`. They are never installed together: torch_xla brings a torchax of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from core.plugin import Event, Memory, Unavailable

if TYPE_CHECKING:
    import torch


class RowFunction(Protocol):
    """A row for arguments of one structure."""

    def within(self, leaves: Sequence[torch.Tensor]) -> Any:
        """What it gives for tensors of a step that is traced: part of what is traced."""

    def on_host(self, leaves: Sequence[torch.Tensor]) -> Any:
        """What it gives for tensors of the host, there too: compiled for their shapes, and run."""


class Lowering(Protocol):
    """Torch code as functions that XLA compiles. Importing one imports its libraries."""

    def open(self) -> None:
        """Start the device, with its cache of compiled functions."""

    def memory(self) -> Memory | None:
        """The chip's own account; None where it is the host processor."""

    def synchronize(self) -> None:
        """Block until all functions launched are done."""

    def keep(self, x: torch.Tensor) -> torch.Tensor:
        """A copy of a host tensor on the device."""

    def holds(self, x: torch.Tensor) -> bool:
        """Whether a tensor is on the device, or stands for one while a function is traced."""

    def arrival(self, dst: torch.Tensor, src: torch.Tensor) -> Event:
        """Start copying `src`, which is on the device, to host `dst`: it is there after `synchronize` on the event."""

    def compiled(self, function: Callable[..., Any], given: tuple[int, ...]) -> Callable[..., Any]:
        """`function`, traced and compiled at its first call. Tensors at the positions `given` are donated."""

    def row(self, function: Callable[..., Any], structure: Any, moves: bool) -> RowFunction:
        """`function` for arguments (args, fixed) of this structure.

        moves   it computes nothing: numbers pass as the bits they are, NaN with its payload too
        """


def _through_jax() -> Lowering:
    from devices.xla.jax_lowering.lowering import JaxLowering

    return JaxLowering()


def _through_torch_xla() -> Lowering:
    from devices.xla.torch_xla_lowering.lowering import TorchXlaLowering

    return TorchXlaLowering()


class Way(NamedTuple):
    """`extra` of this package installs the `distributions`, the last of which extends torch; `load` imports them."""

    extra: str
    distributions: tuple[str, ...]
    load: Callable[[], Lowering]

    @property
    def extension(self) -> str:
        return self.distributions[-1]


WAYS = (
    Way("xla-jax", ("jax", "torchax"), _through_jax),
    Way("torch-xla", ("torch_xla",), _through_torch_xla),
)


def versions() -> dict[str, str]:
    """Of the distributions of all ways, as far as they are installed."""
    found = {}
    for name in (name for way in WAYS for name in way.distributions):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def choose(installed: Mapping[str, str]) -> Way | Unavailable:
    """The one way whose distributions are all there."""
    extras = " or ".join(f"'{way.extra}'" for way in WAYS)
    extending = [way.extension for way in WAYS if way.extension in installed]
    if len(extending) > 1:
        return Unavailable(
            f"{' and '.join(extending)} are both installed, and torch_xla brings a torchax of its own: "
            f"uninstall one of them, or install {extras} in an environment of its own"
        )
    for way in WAYS:
        if all(name in installed for name in way.distributions):
            return way
    needed = ", or ".join(" and ".join(way.distributions) for way in WAYS)
    return Unavailable(f"{needed}: neither is installed: install the extra {extras} of this package")


@cache
def lowering(extension: str) -> Lowering:
    """The one that is in use, by its `Way.extension`."""
    return next(way for way in WAYS if way.extension == extension).load()
