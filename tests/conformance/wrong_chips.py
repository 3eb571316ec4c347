"""Device plugins made of right kernels, and of one that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugins import install_plugin

CHIP = """
from functools import partial

import torch
from core.kernels import operators
from core.kernels.reference import attention, kv
from core.kernels.row import Implementation
from core.model.rope import RopeConfig, cos_sin_table
from core.plugin import Device, DeviceFacts, Memory, Support, hookimpl
from devices.cpu import dense

API = (1, 0)


class Chip(Device):
    def probe(self):
        return DeviceFacts(
            "chip", "cpu", "a test", 1, 1 << 28, ("float32",), host_memory=True, accelerator=False, implicit=False
        )

    def open(self, index):
        return torch.device("cpu")

    def memory(self):
        return Memory(1 << 28, 1 << 28)

    def synchronize(self):
        pass


kernels = {
    "linear": operators.linear,
    "rope": dense.rope,
    "kv_layout": kv.kv_layout,
    "kv_write": kv.kv_write,
    "kv_gather": kv.kv_gather,
    "attn_plan": attention.attn_plan,
    "attn_paged": partial(attention.attn_paged, kv_gather=kv.kv_gather),
}


def wrong(row):
    def take(kernel):
        kernels[row] = kernel

    return take


WRONG


@hookimpl
def core_device():
    return Chip()


@hookimpl
def core_kernels():
    return [Implementation(row, kernel, "chip", Support(batch_invariant=CLAIMED)) for row, kernel in kernels.items()]
"""

ROPE = """
@wrong("gather_rows")
def one_percent_off(x, rows):
    if x.shape[1] == 32:
        x = cos_sin_table(RopeConfig("linear", 32, 10000.0, factor=1 / 1.01), len(x))
    return x[rows]
"""

MASK = """
@wrong("attn_plan")
def self_hidden(*args, **fixed):
    plan = attention.attn_plan(*args, **fixed)
    return plan._replace(tile_positions_MC=plan.tile_positions_MC - 1)
"""

STALE = """
@wrong("attn_plan")
def stale_page(*args, **fixed):
    plan = attention.attn_plan(*args, **fixed)
    pages = plan.tile_pages_MW.clone()
    pages[:, 5:6] = pages[:, 3:4]
    return plan._replace(tile_pages_MW=pages)
"""

MIXED = """
@wrong("attn_plan")
def last_reads_the_first(query_starts, kv_lens, block_table, **fixed):
    block_table = block_table.clone()
    block_table[-1] = block_table[0]
    return attention.attn_plan(query_starts, kv_lens, block_table, **fixed)
"""

FEW = """
@wrong("attn_plan")
def few_tokens_see_each_other(*args, **fixed):
    plan = attention.attn_plan(*args, **fixed)
    positions = plan.tile_positions_MC
    num, last = (positions >= 0).sum(1, keepdim=True), positions.amax(1, keepdim=True)
    return plan._replace(tile_positions_MC=torch.where((positions >= 0) & (num < 5), last, positions))
"""

LAYER = """
num_calls = 0


@wrong("attn_paged")
def second_layer_off(*args, **fixed):
    global num_calls
    num_calls += 1
    o = attention.attn_paged(*args, **fixed, kv_gather=kv.kv_gather)
    return o if num_calls % 2 else o * 1.01
"""

LOST = """
@wrong("kv_write")
def last_token_lost(k, v, planes, slots, **fixed):
    return kv.kv_write(k[:-1], v[:-1], planes, slots[:-1], **fixed)
"""


def install_chip(monkeypatch: pytest.MonkeyPatch, folder: Path, wrong: str, claimed: bool = False) -> None:
    """Make a device "chip", wrong so; or right, where `wrong` is empty. `claimed`: it calls itself batch-invariant."""
    source = CHIP.replace("WRONG", wrong).replace("CLAIMED", str(claimed))
    install_plugin(monkeypatch, folder / "site", "chip", source)
