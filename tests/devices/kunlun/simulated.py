"""What tests of the simulator share: the schedules, and a machine that is left as it was found."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from devices.kunlun import sim

SCHEDULES = ("eager", "lazy", *(f"seed:{seed}" for seed in range(5)))
KV_BYTES = 1 << 16


@contextmanager
def machine(chip: sim.Chip) -> Iterator[None]:
    """A machine of such chips. What a failed test left in flight is run, and not reported again."""
    gc.collect()
    sim.load()
    sim.start(chip)
    with torch.no_grad():
        yield
    sim.races()
    for index in range(chip.count):
        torch.accelerator.synchronize(index)


def zeros(num_bytes: int = KV_BYTES, device: str = "kunlun") -> torch.Tensor:
    """Device memory that nobody uses any more."""
    memory = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    torch.accelerator.synchronize(device)
    return memory


def pinned(num_bytes: int = KV_BYTES) -> torch.Tensor:
    return torch.zeros(num_bytes, dtype=torch.uint8).pin_memory()


def stream() -> torch.Stream:
    return torch.Stream(device="kunlun")
