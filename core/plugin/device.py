"""The device a plugin provides.

Four methods are mandatory: `probe`, `open`, `memory`, `synchronize`. Every other method has a default
that is right on any device with a working torch backend; override it for speed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from core.errors import DeviceError
from core.plugin.facts import DeviceFacts, Memory, Unavailable

if TYPE_CHECKING:
    import torch


class CannotCompile(DeviceError):
    """A function cannot be made faster as a whole; the message says why. Nothing is lost: it can run as it is."""


class Event:
    """The end of some work on the device. The default is for work that is already done.

    `synchronize` and `done` are called from another thread than the device's, too.
    """

    def wait(self) -> None:
        """Let work launched from now on start only after this event. Does not block the host."""

    def synchronize(self) -> None:
        """Block the host until the event has happened."""

    def done(self) -> bool:
        """Whether it has happened. Default: waits until it has, which is right for every event; override it not to."""
        self.synchronize()
        return True


class Device(ABC):
    """A kind of device. One instance is opened once, and then used from one thread only."""

    @abstractmethod
    def probe(self) -> DeviceFacts | Unavailable:
        """Say what is here, cheaply, without starting anything. Called for every plugin."""

    @abstractmethod
    def open(self, index: int) -> torch.device:
        """Start device `index`, from the thread that will launch on it. Called once, before anything below.

        Raises: DeviceError when the device cannot be started.
        """

    @abstractmethod
    def memory(self) -> Memory:
        """Memory of the opened device that is free now, and in all."""

    @abstractmethod
    def synchronize(self) -> None:
        """Block the host until all launched work is done."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A new tensor with undefined content. (optional) Default: torch.empty."""
        import torch

        return torch.empty(shape, dtype=dtype, device=device)

    def loading(self) -> AbstractContextManager[None]:
        """Entered while weights are loaded. (optional) Default: nothing.

        Much memory is taken and given back inside, and what stays is never freed: a device may allocate otherwise.
        """
        return nullcontext()

    def host_empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A new host tensor that `h2d` and `d2h` copy fastest from and to. (optional) Default: plain memory."""
        import torch

        return torch.zeros(shape, dtype=dtype)

    def h2d(self, dst: torch.Tensor, src: torch.Tensor) -> Event:
        """Start copying host `src` to device `dst`, after the work launched so far. (optional) Default: done on return.

        `dst` may be read after `wait` on the event; `src` may be changed after `synchronize` on it.
        """
        dst.copy_(src)
        return Event()

    def d2h(self, dst: torch.Tensor, src: torch.Tensor) -> Event:
        """Start copying device `src` to host `dst`, after the work launched so far. (optional) Default: done on return.

        `dst` may be read after `synchronize` on the event.
        """
        dst.copy_(src)
        return Event()

    def record(self) -> Event:
        """The end of all work launched so far. (optional) Default: synchronizes."""
        self.synchronize()
        return Event()

    def aside(self) -> AbstractContextManager[None]:
        """Work launched inside runs beside what is launched later outside, and after all that was launched before.
        `record` inside gives its end. (optional) Default: in order with the rest.

        Core copies KV pages to the host and back inside, and nothing else: compute never waits for that.
        """
        return nullcontext()

    def seed(self, seed: int) -> None:
        """Seed the device's own random generator, for kernels that use it. (optional) Default: torch's."""
        import torch

        torch.manual_seed(seed)

    def collective_backend(self) -> str:
        """Name of the torch.distributed backend. (optional) Default: gloo."""
        return "gloo"

    def keep(self, value: Any) -> Any:
        """What stays on the device from step to step, in the form that compiled functions take. (optional) Default: as
        it is.

        `value` is a weight as `pack_weight` made it, a KV plane, or the ids drawn last: a tensor or a tuple of them.
        Core passes what comes of it to compiled functions alone, and their results to `d2h` too. A device that keeps
        tensors as they are updates KV planes in place, also in compiled functions: pages are swapped beside steps.
        """
        return value

    def compile(self, function: Callable[..., Any], key: tuple[Any, ...], given: tuple[int, ...]) -> Callable[..., Any]:
        """Make `function` fast for the one shape `key`. (optional) Default: run it as it is.

        It is a half of a step in DESIGN's static form, or what reports log-probabilities: tensors in, tensors out,
        through dicts, lists, tuples and dataclasses; whatever else is in these, `key` fixes. Arguments at the
        positions `given` are given back updated, and nobody reads what was passed again: when a call fails, they count
        as lost, and the engine ends. The tensors of the step's inputs keep their addresses for this key, and get new
        content; those of `extras` are new each time.

        Only devices that state `DeviceFacts.shapes` or `replayed_tokens` are asked. It may compile now or when it is
        first called. Core calls what it returns once for every key of `shapes` before it serves, on padding; for
        `replayed_tokens` when a key first comes up, and reads what a call gives before the next step.

        Raises: CannotCompile, now or at the first call, for `replayed_tokens` alone: core then runs `function` itself.
        """
        return function
