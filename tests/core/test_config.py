"""Every decision of `resolve`: the value, who decided it, and what is refused with which words."""

from __future__ import annotations

from typing import Any

import pytest

from core.config import EngineConfig, cache_identity, resolve
from core.errors import ConfigError
from core.kv.groups import KVGroup
from core.page_counts import with_kv_blocks, with_swap_blocks
from core.plan import Binding, Plan
from core.plugin.facts import DeviceFacts, ShapePolicy

HOST = {"host_memory": True, "accelerator": False, "max_depth": 0}
BUCKETS = ShapePolicy(tokens=(16, 512), seqs=(1, 32), blocks=(4, 64))


def facts(**more: Any) -> DeviceFacts:
    settings = {"arch": "a chip", "count": 1, "memory_bytes": 1 << 30, "dtypes": ("bfloat16", "float32")}
    return DeviceFacts(name="warp", torch_device_type="warp", **{**settings, **more})


def plan(config: EngineConfig | None = None, device: DeviceFacts | None = None, **model: Any) -> Plan:
    settings: dict[str, Any] = {
        "model_dtype": "bfloat16", "model_max_len": 4096, "page_sizes": None, "split": {}, **model,
    }  # fmt: skip
    return resolve(config or EngineConfig(), device or facts(), **settings)


def decided(made: Plan, name: str) -> tuple[Any, str]:
    return getattr(made, name), made.decided_by[name]


# Values that nothing could take


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"max_model_len": 1}, "max_model_len is 1: it must be at least 2"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0: it must be at least 1"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens is 0: it must be at least 1"),
        ({"block_size": 0}, "block_size is 0: it must be at least 1"),
        ({"num_kv_blocks": 1}, "num_kv_blocks is 1: it must be at least 2"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size is 0: it must be at least 1"),
        ({"seed": -1}, "seed is -1: it must be at least 0"),
        ({"dtype": "int4"}, "dtype is int4: choose among auto, float32, bfloat16, float16"),
        ({"pipeline_depth": 2}, "pipeline_depth is 2: choose among 0, 1"),
        ({"fallback": "maybe"}, "fallback is maybe: choose among deny, report, allow"),
        ({"speculative": "eagle"}, "speculative is 'eagle': give ngram"),
        ({"memory_utilization": 0.0}, "memory_utilization is 0.0: it must be above 0 and at most 1"),
        ({"memory_utilization": 1.5}, "memory_utilization is 1.5: it must be above 0 and at most 1"),
        ({"memory_utilization": float("nan")}, "memory_utilization is nan: it must be above 0 and at most 1"),
    ],
)
def test_values_that_nothing_could_take(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(EngineConfig(**config))


def test_what_is_least_is_taken() -> None:
    EngineConfig(
        max_model_len=2, max_num_seqs=1, max_num_batched_tokens=1, block_size=1, num_kv_blocks=2, seed=0,
        memory_utilization=1.0,
    ).check()  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "most", "why"),
    [
        ({}, 64, "device warp"),
        ({"max_num_seqs": 8}, 8, "device warp"),
        ({"enforce_eager": True}, 0, "asked for (enforce_eager)"),
        ({"tensor_parallel_size": 2}, 0, "ranks meet between kernels: tensor_parallel_size is 2"),
    ],
)
def test_what_is_replayed(asked: dict[str, Any], most: int, why: str) -> None:
    assert decided(plan(EngineConfig(**asked), facts(replayed_tokens=64)), "replayed_tokens") == (most, why)


@pytest.mark.parametrize(
    ("asked", "known", "tokens", "why"),
    [
        (None, 768, 768, "device warp"),
        (None, 0, 2048, "default"),
        (2048, 768, 2048, "asked for"),
        (4096, 0, 4096, "asked for"),
    ],
)
def test_how_large_steps_are(asked: int | None, known: int, tokens: int, why: str) -> None:
    made = plan(EngineConfig(max_num_batched_tokens=asked), facts(step_tokens=known))
    assert decided(made, "max_num_batched_tokens") == (tokens, why)


# The defaults


def test_an_accelerator_by_default() -> None:
    made = plan()
    late = {"num_kv_blocks", "num_swap_blocks", "certificate"}
    assert made.decided_by.keys() == {name for name, _, _ in made.rows()} - late
    assert {name: decided(made, name) for name in made.decided_by} == {
        "model": ("smollm2", "asked for"),
        "device": ("warp", "found on this machine"),
        "arch": ("a chip", "device warp"),
        "dtype": ("bfloat16", "the model"),
        "weights": ("dequantised", "default"),
        "max_model_len": (4096, "the model"),
        "shapes": (ShapePolicy(), "device warp"),
        "max_num_seqs": (256, "default"),
        "max_num_batched_tokens": (2048, "default"),
        "speculative": (None, "default"),
        "max_num_logits": (256, "one for each sequence"),
        "page_tokens": (16, "default"),
        "memory_utilization": (0.9, "default for the kind of memory"),
        "prefix_caching": (True, "default"),
        "batch_invariant": (False, "default"),
        "tensor_parallel_size": (1, "default"),
        "pipeline_depth": (1, "device warp"),
        "replayed_tokens": (0, "device warp"),
        "fallback": ("deny", "an accelerator"),
        "seed": (0, "default"),
    }


def test_the_host_by_default() -> None:
    made = plan(device=facts(**HOST))
    assert decided(made, "memory_utilization") == (0.3, "default for the kind of memory")
    assert decided(made, "pipeline_depth") == (0, "device warp")
    assert decided(made, "fallback") == ("allow", "not an accelerator")


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("model", "other", "model"),
        ("device", "warp", "device"),
        ("dtype", "float32", "dtype"),
        ("max_model_len", 100, "max_model_len"),
        ("max_num_seqs", 7, "max_num_seqs"),
        ("max_num_batched_tokens", 7, "max_num_batched_tokens"),
        ("block_size", 32, "page_tokens"),
        ("memory_utilization", 0.5, "memory_utilization"),
        ("enable_prefix_caching", False, "prefix_caching"),
        ("tensor_parallel_size", 2, "tensor_parallel_size"),
        ("pipeline_depth", 0, "pipeline_depth"),
        ("fallback", "report", "fallback"),
        ("seed", 5, "seed"),
    ],
)
def test_what_is_asked_for_is_taken(name: str, value: object, field: str) -> None:
    made = plan(EngineConfig(**{name: value}), split={"KV heads": 4})
    assert decided(made, field) == (value, "asked for")


# Dtype


@pytest.mark.parametrize(
    ("dtypes", "model_dtype", "dtype", "by"),
    [
        (("bfloat16", "float32"), "bfloat16", "bfloat16", "the model"),
        (("float32", "float16"), "float16", "float16", "the model"),
        (("float32", "float16"), "bfloat16", "float32", "device warp; the model is in bfloat16"),
        (("bfloat16", "float32"), "float32", "bfloat16", "device warp; the model is in float32"),
        (("float32",), "float32", "float32", "device warp; the model is in float32"),
    ],
)
def test_dtype(dtypes: tuple[str, ...], model_dtype: str, dtype: str, by: str) -> None:
    assert decided(plan(device=facts(dtypes=dtypes), model_dtype=model_dtype), "dtype") == (dtype, by)


def test_a_dtype_that_the_device_lacks() -> None:
    message = "device warp does not compute in float16: choose among bfloat16, float32"
    with pytest.raises(ConfigError, match=message):
        plan(EngineConfig(dtype="float16"))


# Lengths and shapes


def test_a_length_beyond_the_model() -> None:
    assert plan(EngineConfig(max_model_len=4096)).max_model_len == 4096
    with pytest.raises(ConfigError, match="max_model_len is 4097: the model was made for 4096 tokens; ask for at most"):
        plan(EngineConfig(max_model_len=4097))


def test_buckets_bound_the_scheduler() -> None:
    made = plan(device=facts(shapes=BUCKETS))
    assert decided(made, "max_num_seqs") == (32, "largest bucket of device warp")
    assert decided(made, "max_num_batched_tokens") == (512, "largest bucket of device warp")
    assert decided(made, "max_model_len") == (64 * 16, "widest block table of device warp")
    fits = plan(EngineConfig(max_num_seqs=31, max_num_batched_tokens=511, max_model_len=1024), facts(shapes=BUCKETS))
    assert (fits.max_num_seqs, fits.max_num_batched_tokens, fits.max_model_len) == (31, 511, 1024)
    assert not fits.shapes.dynamic


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"max_num_seqs": 33}, "max_num_seqs is 33: device warp takes at most 32"),
        ({"max_num_batched_tokens": 513}, "max_num_batched_tokens is 513: device warp takes at most 512"),
        ({"max_model_len": 1025}, "max_model_len is 1025: block tables of device warp hold 1024 tokens"),
    ],
)
def test_more_than_the_largest_bucket(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(EngineConfig(**config), facts(shapes=BUCKETS))


# Pages


@pytest.mark.parametrize(
    ("asked", "sizes", "page", "by"),
    [
        (None, None, 16, "default"),
        (None, {16, 64}, 16, "KV kernels of device warp"),
        (None, {128, 64}, 64, "KV kernels of device warp"),
        (64, {64, 128}, 64, "asked for"),
        (5, None, 5, "asked for"),
    ],
)
def test_page_size(asked: int | None, sizes: set[int] | None, page: int, by: str) -> None:
    made = plan(EngineConfig(block_size=asked), page_sizes=None if sizes is None else frozenset(sizes))
    assert decided(made, "page_tokens") == (page, by)


def test_a_page_that_the_kernels_do_not_take() -> None:
    with pytest.raises(ConfigError, match="block_size is 16: the KV kernels of device warp take 64, 128"):
        plan(EngineConfig(block_size=16), page_sizes=frozenset({128, 64}))


# Ranks


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (3, "tensor_parallel_size is 3: it does not divide the model's 4 KV heads; choose among 1, 2"),
        (4, "tensor_parallel_size is 4: it does not divide the model's 6 attention heads; choose among 1, 2"),
    ],
)
def test_ranks_that_do_not_divide(size: int, message: str) -> None:
    split = {"KV heads": 4, "attention heads": 6}
    assert plan(EngineConfig(tensor_parallel_size=2), split=split).tensor_parallel_size == 2
    with pytest.raises(ConfigError, match=message):
        plan(EngineConfig(tensor_parallel_size=size), split=split)


def test_more_depth_than_the_device_gains_from() -> None:
    made = plan(EngineConfig(pipeline_depth=1), facts(**HOST))
    assert decided(made, "pipeline_depth") == (1, "asked for; device warp gains nothing above 0")


# KV pages


def kv(made: Plan, free: int = 10_000, page_bytes: tuple[int, ...] = (10,), **config: Any) -> Plan:
    groups = (KVGroup(1, 1, 1),) * len(page_bytes)
    return with_kv_blocks(made, EngineConfig(**config), groups=groups, page_bytes=page_bytes, free_bytes=free)


def small(**config: Any) -> Plan:
    return plan(EngineConfig(max_num_seqs=2, memory_utilization=0.5, **config), model_max_len=160)


def test_no_more_pages_than_every_sequence_can_use() -> None:
    """Two sequences of 10 pages, and the null page."""
    made = kv(small())
    assert decided(made, "num_kv_blocks") == ((21,), "every sequence at full length")
    assert decided(made, "max_model_len") == (160, "the model")


def test_pages_from_the_share_of_the_memory() -> None:
    made = kv(small(), free=400)
    assert decided(made, "num_kv_blocks") == ((20,), "0 MiB for KV")
    two = kv(small(), free=800, page_bytes=(10, 10))
    assert two.num_kv_blocks == (20, 20), "groups have the same number"


def test_pages_that_are_asked_for() -> None:
    """Of all memory that is free, not of a share of it."""
    assert decided(kv(small(), free=150, num_kv_blocks=15), "num_kv_blocks") == ((15,), "asked for")


@pytest.mark.parametrize(("free", "page_bytes", "most"), [(149, (10,), 14), (310, (10, 11), 14)])
def test_pages_that_there_is_no_memory_for(free: int, page_bytes: tuple[int, ...], most: int) -> None:
    with pytest.raises(ConfigError, match=f"num_kv_blocks is 15: .* are free; ask for {most} at most"):
        kv(small(), free=free, page_bytes=page_bytes, num_kv_blocks=15)
    assert kv(small(), free=free, page_bytes=page_bytes, num_kv_blocks=most).num_kv_blocks[0] == most


def test_the_length_follows_from_the_pages_where_none_was_asked_for() -> None:
    made = kv(small(), free=140)
    assert made.num_kv_blocks == (7,)
    assert decided(made, "max_model_len") == (6 * 16, "what the KV pages hold")
    assert kv(small(), num_kv_blocks=11).max_model_len == 160, "11 pages hold it exactly: page 0 is null"
    assert kv(small(), num_kv_blocks=10).max_model_len == 144


def test_a_length_asked_for_must_fit() -> None:
    asked = {"max_model_len": 150}
    with pytest.raises(
        ConfigError,
        match=r"7 KV pages hold 96 tokens, and max_model_len is 150: lower max_model_len, "
        r"or give memory for 11 pages \(0 MiB\)",
    ):
        kv(small(**asked), free=140, **asked)
    assert kv(small(**asked), free=220, **asked).max_model_len == 150


# Drafts


@pytest.mark.parametrize(
    ("config", "more", "num_logits"),
    [
        ({}, {}, 288),
        ({"max_num_seqs": 1}, {}, 9),
        ({"max_num_seqs": 256}, {}, 512),
        ({"max_num_seqs": 600}, {}, 600),
        ({"max_num_batched_tokens": 40}, {}, 40),
        ({"max_num_batched_tokens": 4}, {}, 32),
        ({"max_num_seqs": 2}, {"shapes": BUCKETS}, 18),
        ({"max_num_seqs": 8}, {"shapes": BUCKETS}, 32),
    ],
)
def test_drafts_have_rows_of_logits(config: dict[str, Any], more: dict[str, Any], num_logits: int) -> None:
    """One for each draft, as far as the tokens of a step, their memory and what was compiled go."""
    asked = EngineConfig(**{"max_num_seqs": 32, **config})
    assert decided(plan(asked, facts(**more)), "max_num_logits") == (asked.max_num_seqs, "one for each sequence")
    made = plan(EngineConfig(**{"max_num_seqs": 32, "speculative": "ngram", **config}), facts(**more))
    assert decided(made, "speculative") == ("ngram:8:2-4", "asked for")
    assert decided(made, "max_num_logits") == (num_logits, "speculative")


def swap(space: float, page_bytes: tuple[int, ...] = (2**20,), **given: Any) -> Plan:
    """By default, pages of 1 MiB, and a host with 3 GiB free."""
    groups = (KVGroup(1, 1, 1),) * len(page_bytes)
    given = {"in_place": True, "free_bytes": 3 * 2**30, "made": small(), **given}
    return with_swap_blocks(
        given.pop("made"), EngineConfig(swap_space=space), groups=groups, page_bytes=page_bytes, **given
    )


def test_pages_on_the_host() -> None:
    assert decided(swap(0, (10, 10)), "num_swap_blocks") == ((0, 0), "default")
    assert decided(swap(0, in_place=False, free_bytes=0), "num_swap_blocks") == ((0,), "default")
    assert decided(swap(0.01), "num_swap_blocks") == ((10,), "0.01 GiB")
    assert decided(swap(0.01, (2**20, 2**20)), "num_swap_blocks") == ((5, 5), "0.01 GiB"), "groups have the same number"
    assert decided(swap(3), "num_swap_blocks") == ((21,), "every sequence at full length")


def test_pages_on_the_host_that_cannot_be_had() -> None:
    with pytest.raises(ConfigError, match=r"swap_space is 4 GiB for each of 1 ranks: the host has 3\.00 GiB free; ask"):
        swap(4)
    ranks = plan(EngineConfig(tensor_parallel_size=2), split={"KV heads": 4})
    with pytest.raises(ConfigError, match=r"swap_space is 2 GiB for each of 2 ranks: the host has 3\.00 GiB free"):
        swap(2, made=ranks)
    with pytest.raises(ConfigError, match=r"0\.0001 GiB: one KV page of every group takes 0\.002 GiB; ask for more"):
        swap(0.0001, (2**20, 2**20))
    with pytest.raises(ConfigError, match=r"device warp keeps KV pages in a form of its own.*leave it out"):
        swap(1, in_place=False)


@pytest.mark.parametrize("space", [-1.0, float("nan"), float("inf")])
def test_no_room_on_the_host(space: float) -> None:
    with pytest.raises(ConfigError, match=f"swap_space is {space}: it must be a number of GiB, at least 0"):
        EngineConfig(swap_space=space).check()


@pytest.mark.parametrize("free", [0, 10, 19, 39])
def test_no_memory_at_all(free: int) -> None:
    with pytest.raises(ConfigError, match=r"KV pages hold \d+ tokens, and max_model_len is 160: lower max_model_len"):
        kv(small(), free=free)


def test_what_people_see() -> None:
    made = kv(small())
    rows = {name: value for name, value, _ in made.rows()}
    assert rows["shapes"] == "any"
    assert rows["num_kv_blocks"] == "21"
    assert dict((n, v) for n, v, _ in small().rows())["num_kv_blocks"] == "not known before weights are loaded"
    bucketed = plan(device=facts(shapes=BUCKETS))
    [(shown, by)] = [(value, by) for name, value, by in bucketed.rows() if name == "shapes"]
    assert shown.startswith("tokens 16, 512 (padding ")
    assert by == "device warp"
    assert not {"bindings", "notes", "decided_by"} & set(rows)
    assert Binding("linear", "warp", "native", 3)._fields == ("row", "provider", "reason", "uses")


def test_the_identity_of_a_cache() -> None:
    """Whatever changes what a page holds changes it."""
    group = KVGroup(2, 4, 64)
    made = small()
    base = cache_identity(made, (group,), ("layout",))
    others = [
        cache_identity(plan(EngineConfig(model="other"), model_max_len=160), (group,), ("layout",)),
        cache_identity(plan(EngineConfig(dtype="float32"), model_max_len=160), (group,), ("layout",)),
        cache_identity(plan(EngineConfig(weights="packed"), model_max_len=160), (group,), ("layout",)),
        cache_identity(plan(EngineConfig(block_size=32), model_max_len=160), (group,), ("layout",)),
        cache_identity(made, (KVGroup(2, 4, 64, retain=8),), ("layout",)),
        cache_identity(made, (group,), ("other",)),
    ]
    assert len({base, *others}) == 7
    assert cache_identity(small(seed=3), (group,), ("layout",)) == base
