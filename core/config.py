"""What was asked for, and what came of it.

`EngineConfig` is what a user asks. `resolve` alone turns it, the device's facts and the model's shape into a `Plan`:
every value, and who decided it; `core.page_counts` adds how many KV pages there are. Nothing else in core makes such
choices, and a plan never changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from core.errors import ConfigError
from core.kv.groups import KVGroup
from core.plan import Plan
from core.plugin.facts import DTYPES, DeviceFacts
from core.speculate.choice import parse_speculative

WEIGHTS = ("dequantised", "packed")
FALLBACKS = ("deny", "report", "allow")
PAGE_TOKENS = 16
BATCHED_TOKENS = 2048
DRAFTED_LOGITS = 512  # rows of logits in a step with drafts, beyond which their memory would tell
HOST_MEMORY_SHARE = 0.3  # of what is free: the machine has other work
DEVICE_MEMORY_SHARE = 0.9  # of what is free once weights are loaded


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a user may ask of an engine; None lets core decide.

    model                    folder, .gguf file, hub id, or alias of an installed weights package
    device                   name of a device plugin
    dtype                    of weights and activations; "auto": the device's best of those the model was made for
    weights                  of a quantised model: dequantised to `dtype`, or packed: kept as stored where that can be
    max_model_len            prompt and output together
    max_num_seqs             sequences that run at a time
    max_num_batched_tokens   tokens in a step
    block_size               tokens in a KV page
    num_kv_blocks            KV pages; None: from the memory that is free
    memory_utilization       share of free memory to use for the KV cache
    swap_space               GiB on the host, for each rank, that preempted sequences are copied to; 0: none, they are
                             computed again
    enable_prefix_caching    find KV pages of earlier requests again
    tensor_parallel_size     ranks that split each layer
    pipeline_depth           steps that are scheduled while another runs: 0 or 1
    enforce_eager            steps run kernel by kernel, also on a device that compiles or replays them
    batch_invariant          a request's tokens never depend on what else is served: slower
    fallback                 may production kernels run on their reference: deny, report, allow
    kernels                  row -> provider, or "reference"
    seed                     of the device's own generator
    kv_events                ZeroMQ endpoint to publish changes of the prefix cache at (`core.kv.events`)
    speculative              guess ids ahead and check them in one step: "ngram", "ngram:DRAFTS",
                             "ngram:DRAFTS:MIN-MAX", or "mtp:PATH" or "model:PATH", each with ":DRAFTS" or without
                             (`core.speculate.choice`); None: nothing is
    profile                  file to write a trace to (`core.engine.profile`)
    """

    model: str = "smollm2"
    device: str | None = None
    dtype: str = "auto"
    weights: str = "dequantised"
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    num_kv_blocks: int | None = None
    memory_utilization: float | None = None
    swap_space: float = 0.0
    enable_prefix_caching: bool = True
    tensor_parallel_size: int = 1
    pipeline_depth: int | None = None
    enforce_eager: bool = False
    batch_invariant: bool = False
    fallback: str | None = None
    kernels: dict[str, str] = msgspec.field(default_factory=dict)
    seed: int = 0
    kv_events: str | None = None
    speculative: str | None = None
    profile: str | None = None

    def check(self) -> None:
        """Raises ConfigError for a value that no device and no model could take."""
        at_least = (
            ("max_model_len", self.max_model_len, 2),
            ("max_num_seqs", self.max_num_seqs, 1),
            ("max_num_batched_tokens", self.max_num_batched_tokens, 1),
            ("block_size", self.block_size, 1),
            ("num_kv_blocks", self.num_kv_blocks, 2),
            ("tensor_parallel_size", self.tensor_parallel_size, 1),
            ("seed", self.seed, 0),
        )
        for name, value, least in at_least:
            if value is not None and value < least:
                raise ConfigError(f"{name} is {value}: it must be at least {least}")
        among: tuple[tuple[str, object, tuple[object, ...]], ...] = (
            ("dtype", self.dtype, ("auto", *DTYPES)),
            ("weights", self.weights, WEIGHTS),
            ("pipeline_depth", self.pipeline_depth, (None, 0, 1)),
            ("fallback", self.fallback, (None, *FALLBACKS)),
        )
        for name, choice, choices in among:
            if choice not in choices:
                raise ConfigError(
                    f"{name} is {choice}: choose among {', '.join(str(c) for c in choices if c is not None)}"
                )
        if self.memory_utilization is not None and not 0 < self.memory_utilization <= 1:
            raise ConfigError(f"memory_utilization is {self.memory_utilization}: it must be above 0 and at most 1")
        if not 0 <= self.swap_space < float("inf"):
            raise ConfigError(f"swap_space is {self.swap_space}: it must be a number of GiB, at least 0")
        if self.speculative is not None:
            parse_speculative(self.speculative)
        if self.kv_events is not None and not self.enable_prefix_caching:
            raise ConfigError(f"kv_events is {self.kv_events}: without prefix caching there are none; enable it")


class _Choices:
    """Collects values with who decided them."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.by: dict[str, str] = {}

    def set(self, name: str, value: object, by: str) -> None:
        self.values[name] = value
        self.by[name] = by

    def ask(self, name: str, asked: object | None, default: object, by: str) -> None:
        """The value asked for, else the default that `by` gives."""
        self.set(name, default if asked is None else asked, by if asked is None else "asked for")


def resolve(
    config: EngineConfig,
    facts: DeviceFacts,
    *,
    model_dtype: str,
    model_max_len: int,
    page_sizes: frozenset[int] | None,
    split: Mapping[str, int],
) -> Plan:
    """Decide everything that does not need loaded weights.

    model_dtype, model_max_len   what the model was made in and for
    page_sizes                   what the provider of the KV bundle takes; None: any
    split                        what tensor parallelism must divide, by name

    Raises: ConfigError naming the value, the limit and the remedy.
    """
    config.check()
    c = _Choices()
    c.set("model", config.model, "asked for")
    c.set("device", facts.name, "asked for" if config.device else "found on this machine")
    c.set("arch", facts.arch, f"device {facts.name}")
    c.set("dtype", *choose_dtype(config, facts, model_dtype))
    c.set("weights", config.weights, "asked for" if config.weights != EngineConfig().weights else "default")
    _choose_length(c, config, model_max_len)
    _choose_shapes(c, config, facts)
    _choose_drafts(c, config, facts)
    _choose_replay(c, config, facts)
    _choose_page(c, config, facts, page_sizes)
    share = HOST_MEMORY_SHARE if facts.host_memory else DEVICE_MEMORY_SHARE
    c.ask("memory_utilization", config.memory_utilization, share, "default for the kind of memory")
    c.set(
        "prefix_caching", config.enable_prefix_caching, "asked for" if not config.enable_prefix_caching else "default"
    )
    _choose_ranks(c, config, split)
    if config.pipeline_depth is not None and config.pipeline_depth > facts.max_depth:
        note = f"asked for; device {facts.name} gains nothing above {facts.max_depth}"
        c.set("pipeline_depth", config.pipeline_depth, note)
    else:
        c.ask("pipeline_depth", config.pipeline_depth, facts.max_depth, f"device {facts.name}")
    c.set("batch_invariant", config.batch_invariant, "asked for" if config.batch_invariant else "default")
    strict = "deny" if facts.accelerator else "allow"
    c.ask("fallback", config.fallback, strict, "an accelerator" if facts.accelerator else "not an accelerator")
    c.set("seed", config.seed, "asked for" if config.seed else "default")
    return Plan(**c.values, decided_by=c.by)


def choose_dtype(config: EngineConfig, facts: DeviceFacts, model_dtype: str) -> tuple[str, str]:
    """The dtype of weights and activations, and who decided it. Raises: ConfigError when the device lacks it."""
    if config.dtype != "auto":
        if config.dtype not in facts.dtypes:
            have = ", ".join(facts.dtypes)
            raise ConfigError(f"device {facts.name} does not compute in {config.dtype}: choose among {have}")
        return config.dtype, "asked for"
    if model_dtype in facts.dtypes and model_dtype != "float32":
        return model_dtype, "the model"
    return facts.dtypes[0], f"device {facts.name}; the model is in {model_dtype}"


def _choose_length(c: _Choices, config: EngineConfig, model_max_len: int) -> None:
    asked = config.max_model_len
    if asked is not None and asked > model_max_len:
        raise ConfigError(
            f"max_model_len is {asked}: the model was made for {model_max_len} tokens; ask for at most that"
        )
    c.ask("max_model_len", asked, model_max_len, "the model")


def _choose_shapes(c: _Choices, config: EngineConfig, facts: DeviceFacts) -> None:
    shapes = facts.shapes
    c.set("shapes", shapes, f"device {facts.name}")
    step_tokens, step_by = BATCHED_TOKENS, "default"
    if facts.step_tokens:
        step_tokens, step_by = facts.step_tokens, f"device {facts.name}"
    limits = (
        ("max_num_seqs", config.max_num_seqs, shapes.seqs, EngineConfig().max_num_seqs, "default"),
        ("max_num_batched_tokens", config.max_num_batched_tokens, shapes.tokens, step_tokens, step_by),
    )
    for name, asked, buckets, default, default_by in limits:
        value = default if asked is None else asked
        by = "asked for" if asked not in (None, default) else default_by
        if buckets and value > buckets[-1]:
            if by == "asked for":
                raise ConfigError(f"{name} is {value}: device {facts.name} takes at most {buckets[-1]}")
            value, by = buckets[-1], f"largest bucket of device {facts.name}"
        c.set(name, value, by)


def _choose_replay(c: _Choices, config: EngineConfig, facts: DeviceFacts) -> None:
    """Ranks meet in every layer, outside of what a device can replay."""
    if config.enforce_eager:
        c.set("replayed_tokens", 0, "asked for (enforce_eager)")
    elif facts.replayed_tokens and config.tensor_parallel_size > 1:
        c.set(
            "replayed_tokens", 0, f"ranks meet between kernels: tensor_parallel_size is {config.tensor_parallel_size}"
        )
    else:
        c.set("replayed_tokens", min(facts.replayed_tokens, c.values["max_num_logits"]), f"device {facts.name}")


def _choose_drafts(c: _Choices, config: EngineConfig, facts: DeviceFacts) -> None:
    """Each draft has a row of logits: where shapes are compiled, there are no more of them than of sequences."""
    seqs = c.values["max_num_seqs"]
    if config.speculative is None:
        c.set("speculative", None, "default")
        c.set("max_num_logits", seqs, "one for each sequence")
        return
    asked = parse_speculative(config.speculative)
    c.set("speculative", str(asked), "asked for")
    most = min(seqs * (1 + asked.max_drafts), c.values["max_num_batched_tokens"], DRAFTED_LOGITS)
    c.set("max_num_logits", max(seqs, min([most, *facts.shapes.seqs[-1:]])), "speculative")


def _choose_page(c: _Choices, config: EngineConfig, facts: DeviceFacts, sizes: frozenset[int] | None) -> None:
    asked = config.block_size
    if sizes is None:
        c.ask("page_tokens", asked, PAGE_TOKENS, "default")
    elif asked is not None:
        if asked not in sizes:
            have = ", ".join(map(str, sorted(sizes)))
            raise ConfigError(f"block_size is {asked}: the KV kernels of device {facts.name} take {have}")
        c.set("page_tokens", asked, "asked for")
    else:
        c.set("page_tokens", PAGE_TOKENS if PAGE_TOKENS in sizes else min(sizes), f"KV kernels of device {facts.name}")
    widest = facts.shapes.blocks[-1] * c.values["page_tokens"] if facts.shapes.blocks else None
    if widest is not None and c.values["max_model_len"] > widest:
        if config.max_model_len is not None:
            raise ConfigError(
                f"max_model_len is {config.max_model_len}: block tables of device {facts.name} hold {widest} tokens"
            )
        c.set("max_model_len", widest, f"widest block table of device {facts.name}")


def _choose_ranks(c: _Choices, config: EngineConfig, split: Mapping[str, int]) -> None:
    size = config.tensor_parallel_size
    for name, count in split.items():
        if count % size:
            fits = [n for n in range(1, count + 1) if all(v % n == 0 for v in split.values())]
            raise ConfigError(
                f"tensor_parallel_size is {size}: it does not divide the model's {count} {name}; "
                f"choose among {', '.join(map(str, fits))}"
            )
    c.set("tensor_parallel_size", size, "asked for" if size > 1 else "default")


def cache_identity(plan: Plan, groups: tuple[KVGroup, ...], formats: tuple[str, ...]) -> tuple[str, ...]:
    """What makes two caches interchangeable, for `core.kv.prefix.spec_digest`."""
    return (plan.model, plan.dtype, plan.weights, str(plan.page_tokens), repr(groups), *formats)
