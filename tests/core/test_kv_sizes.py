"""How KV pages are shared out between groups with windows and groups that keep everything."""

from __future__ import annotations

from typing import Any

import pytest

from core.config import EngineConfig, resolve
from core.errors import ConfigError
from core.kv.groups import KVGroup
from core.page_counts import with_kv_blocks
from core.plan import Plan
from core.plugin.facts import DeviceFacts

FULL, WINDOW = KVGroup(1, 1, 1), KVGroup(1, 1, 1, retain=64)
PAGE = 16


def size(
    groups: tuple[KVGroup, ...], page_bytes: tuple[int, ...], free: int = 1 << 40, max_len: int = 4096, **more: Any
) -> Plan:
    config = EngineConfig(memory_utilization=1.0, **{"max_num_seqs": 2, "max_num_batched_tokens": 32, **more})
    facts = DeviceFacts(
        name="warp", torch_device_type="warp", arch="a chip", count=1, memory_bytes=1 << 30, dtypes=("float32",),
        max_depth=0,
    )  # fmt: skip
    plan = resolve(config, facts, model_dtype="float32", model_max_len=max_len, page_sizes=None, split={})
    return with_kv_blocks(plan, config, groups=groups, page_bytes=page_bytes, free_bytes=free)


def held(num_seqs: int) -> int:
    """4 pages hold a window that starts with a page; 2 more lie at its ends; a step's tokens need 2."""
    return num_seqs * (4 + 2) + 2


def test_a_window_needs_twice_what_the_running_sequences_hold_in_it() -> None:
    plan = size((FULL, WINDOW), (10, 10))
    assert plan.num_kv_blocks == (2 * 4096 // PAGE + 1, 2 * held(2) + 1)
    assert plan.decided_by["num_kv_blocks"] == "every sequence at full length"


def test_what_a_window_does_not_need_goes_to_the_group_that_keeps_everything() -> None:
    cap = 2 * held(2) + 1
    plan = size((FULL, WINDOW), (10, 30), free=300 * 10 + cap * 30 + 9)
    assert plan.num_kv_blocks == (300, cap)
    assert size((FULL, WINDOW), (10, 30), free=20 * 40, max_len=128).num_kv_blocks == (17, 17), "short: all the same"


def test_steps_in_flight_count() -> None:
    one, two = (size((FULL, WINDOW), (1, 1), pipeline_depth=depth).num_kv_blocks[1] for depth in (0, 1))
    assert two - one == 2 * 32 // PAGE


def test_a_number_asked_for_is_that_of_the_first_group() -> None:
    assert size((FULL, WINDOW), (1, 1), num_kv_blocks=280).num_kv_blocks == (280, 2 * held(2) + 1)
    assert size((FULL, WINDOW), (1, 1), num_kv_blocks=20, max_len=300).num_kv_blocks == (20, 20)
    assert size((WINDOW,), (1,), num_kv_blocks=50).num_kv_blocks == (50,)


def test_the_longest_sequence_fits_or_the_length_is_lowered() -> None:
    """In a group that keeps everything, a page for every token; in a window, what one sequence holds, twice."""
    assert size((FULL, WINDOW), (1, 1), num_kv_blocks=100).max_model_len == 99 * PAGE
    least = 2 * held(1) + 1
    alone = size((WINDOW,), (1,), num_kv_blocks=least)
    assert alone.max_model_len == 4096
    short = size((WINDOW,), (1,), num_kv_blocks=least - 1)
    assert short.max_model_len == (least - 2) * PAGE
    assert short.decided_by["max_model_len"] == "what the KV pages hold"
    with pytest.raises(ConfigError, match=rf"16 KV pages hold 240 tokens.* give memory for {least} pages"):
        size((WINDOW,), (1,), num_kv_blocks=least - 1, max_model_len=4096)


def test_windows_alone_need_little_memory() -> None:
    plan = size((WINDOW,), (1,), free=1000, max_len=1 << 20)
    assert plan.num_kv_blocks == (2 * held(2) + 1,)
    assert plan.max_model_len == 1 << 20
