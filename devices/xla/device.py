"""A device of XLA's, through torchax and jax. Imports them when it is opened, and no sooner.

Core packs and reads tensors of the host. What stays on the device (weights, KV planes, the ids drawn last) goes there
by `keep`, and only compiled functions and `d2h` get at it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from core.errors import DeviceError
from core.plugin import Device, DeviceFacts, Event, Memory, ShapePolicy, Unavailable

if TYPE_CHECKING:
    import jax
    import torch

SHAPES = ShapePolicy(tokens=(8, 32, 256), seqs=(8, 32), blocks=(64, 512, 2048))
CACHE_VARIABLE = "JAX_COMPILATION_CACHE_DIR"


class XlaDevice(Device):
    """Device 0 of jax's default platform."""

    def __init__(self) -> None:
        self._device: Any = None
        self._launched: list[jax.Array] = []

    def probe(self) -> DeviceFacts | Unavailable:
        """By what is installed alone."""
        try:
            versions = f"jax {version('jax')}, torchax {version('torchax')}"
        except PackageNotFoundError as error:
            return Unavailable(f"{error.name} is not installed: install the extra 'xla-jax' of this package")
        if find_spec("torch_xla"):
            return Unavailable("torch_xla is installed, which brings a torchax of its own: uninstall torch_xla")
        return DeviceFacts(
            name="xla",
            torch_device_type="cpu",
            arch=versions,
            count=1,
            memory_bytes=psutil.virtual_memory().total,
            dtypes=("float32", "bfloat16"),
            host_memory=True,
            implicit=False,
            torch_extension="torchax",
            shapes=SHAPES,
        )

    def open(self, index: int) -> torch.device:
        """Start jax, with its cache of compiled functions. Raises: DeviceError for an index other than 0."""
        if index != 0:
            raise DeviceError(f"xla device {index} is not supported: steps run on one device; use index 0")
        import jax
        import torch

        if CACHE_VARIABLE not in os.environ:
            jax.config.update("jax_compilation_cache_dir", str(cache_folder()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        self._device = jax.devices()[0]
        return torch.device("cpu")

    def memory(self) -> Memory:
        """The chip's own account; where it is the host processor, the machine's."""
        stats = self._device.memory_stats()
        if stats:
            return Memory(stats["bytes_limit"] - stats["bytes_in_use"], stats["bytes_limit"])
        machine = psutil.virtual_memory()
        return Memory(machine.available, machine.total)

    def synchronize(self) -> None:
        """Functions run in the order of their launch, so the last one is waited for."""
        for result in self._launched:
            if not result.is_deleted():
                result.block_until_ready()

    def keep(self, value: Any) -> Any:
        import jax

        from devices.xla import tree
        from devices.xla.environment import numbers, tensor

        leaves: list[torch.Tensor] = []
        structure = tree.take(value, leaves)
        return tree.put(structure, (tensor(jax.device_put(numbers(leaf), self._device)) for leaf in leaves))

    def d2h(self, dst: torch.Tensor, src: torch.Tensor) -> Event:
        from devices.xla.environment import array, is_array

        return _Arrival(dst, array(src)) if is_array(src) else super().d2h(dst, src)

    def compile(self, function: Callable[..., Any], key: tuple[Any, ...], given: tuple[int, ...]) -> Callable[..., Any]:
        from devices.xla.compile import CompiledFunction

        return CompiledFunction(function, given, self._note)

    def _note(self, results: list[jax.Array]) -> None:
        self._launched = results


class _Arrival(Event):
    """A copy to the host: started at once, and put in its place when it is waited for."""

    def __init__(self, target: torch.Tensor, source: jax.Array) -> None:
        source.copy_to_host_async()
        self._copy: tuple[torch.Tensor, jax.Array] | None = target, source

    def synchronize(self) -> None:
        from devices.xla.environment import write

        if self._copy:
            write(*self._copy)
            self._copy = None


def cache_folder() -> Path:
    """Where compiled functions are kept between runs, unless JAX_COMPILATION_CACHE_DIR names another folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "core" / "xla"
