"""A device without arithmetic: the token after t is t + 1, modulo the vocabulary.

For tests of everything around the model (scheduling, servers, clients) at a speed that the model does not limit. No
weights are read. Its kernels pass on tensors of the right shape that take no memory; the ids of the step are kept
aside, for `sample` to count on from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.plugin import Device, DeviceFacts, Memory, Unavailable, hookimpl

if TYPE_CHECKING:
    import torch

    from core.kernels.row import Implementation

API = (1, 0)


class NullDevice(Device):
    """Lives in host memory, of which it claims 1 GiB."""

    def probe(self) -> DeviceFacts | Unavailable:
        return DeviceFacts(
            name="null",
            torch_device_type="cpu",
            arch="computes nothing: the next token is the last one plus 1",
            count=1,
            memory_bytes=1 << 30,
            dtypes=("float32", "bfloat16", "float16"),
            host_memory=True,
            accelerator=False,
            implicit=False,
            uses_weights=False,
        )

    def open(self, index: int) -> torch.device:
        import torch

        torch.set_num_threads(1)
        return torch.device("cpu")

    def memory(self) -> Memory:
        return Memory(1 << 30, 1 << 30)

    def synchronize(self) -> None:
        """Nothing is ever under way."""


@hookimpl
def core_device() -> Device:
    return NullDevice()


@hookimpl
def core_kernels() -> list[Implementation]:
    from devices.null.kernels import NullKernels

    return NullKernels().implementations()
